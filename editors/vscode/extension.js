// Starts `mlirules lsp` for YAML files; everything else is the server's.
"use strict";

const vscode = require("vscode");
const { LanguageClient, TransportKind } = require("vscode-languageclient/node");

let client;

async function start() {
  const [command, ...args] = vscode.workspace.getConfiguration("mlirules").get("command");
  const server = { command, args, transport: TransportKind.stdio };
  const options = {
    documentSelector: [{ language: "yaml", scheme: "file" }],
    middleware: {
      // The server answers with the PDLL, or with how a test went.
      executeCommand: async (name, given, next) => {
        const answer = await next(name, given);
        if (name === "mlirules.previewPdll" && typeof answer === "string") {
          const made = await vscode.workspace.openTextDocument({ content: answer });
          await vscode.window.showTextDocument(made, vscode.ViewColumn.Beside);
        }
        return answer;
      },
    },
  };
  client = new LanguageClient("mlirules", "mlirules", server, options);
  await client.start();
}

async function activate(context) {
  context.subscriptions.push(
    vscode.commands.registerCommand("mlirules.restart", async () => {
      await deactivate();
      await start();
    }),
  );
  await start();
}

async function deactivate() {
  const running = client;
  client = undefined;
  if (running) await running.stop();
}

module.exports = { activate, deactivate };
