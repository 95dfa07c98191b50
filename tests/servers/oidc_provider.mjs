// An authorization server that is not ours: oidc-provider, with clients that register themselves, opaque access tokens of
// one resource, and refresh tokens that are good once (a second use of one ends the whole login).
//
//   node oidc_provider.mjs MODULES RESOURCE SECONDS LEDGER
//
// MODULES is a folder with node_modules, RESOURCE the URL of the MCP server, SECONDS the life of an access token, LEDGER the
// file in which each grant is a line. The first line on stdout is the port. Whoever comes with the header `X-Person: NAME` is that person, and agrees to all.

import { appendFileSync } from "node:fs";
import { createServer } from "node:http";
import { createRequire } from "node:module";
import process from "node:process";
import { pathToFileURL } from "node:url";

const [modules, resource, seconds, ledger] = process.argv.slice(2);
const load = createRequire(`${modules}/`);
const { Provider } = await import(pathToFileURL(load.resolve("oidc-provider")));

const server = createServer();
await new Promise((listening) => server.listen(0, "127.0.0.1", listening));
const { port } = server.address();

const provider = new Provider(`http://127.0.0.1:${port}`, {
  clients: [{
    client_id: "server",
    client_secret: "s3cr3t",
    token_endpoint_auth_method: "client_secret_basic",
    redirect_uris: [],
    grant_types: [],
    response_types: [],
  }],
  clientDefaults: { grant_types: ["authorization_code", "refresh_token"], token_endpoint_auth_method: "none" },
  cookies: { keys: ["of a test"] },
  features: {
    devInteractions: { enabled: false },
    introspection: { enabled: true, allowedPolicy: (_, client) => client.clientId === "server" },
    registration: { enabled: true },
    resourceIndicators: {
      enabled: true,
      getResourceServerInfo: (_, asked) => {
        if (asked !== resource) throw new Error(`no such resource: ${asked}`);
        return { scope: "notes", audience: resource, accessTokenTTL: Number(seconds), accessTokenFormat: "opaque" };
      },
    },
    revocation: { enabled: true },
  },
  findAccount: (_, accountId) => ({ accountId, claims: () => ({ sub: accountId }) }),
  interactions: { url: (_, interaction) => `/interaction/${interaction.uid}` },
  issueRefreshToken: () => true,
  rotateRefreshToken: true,
  scopes: ["openid", "offline_access", "notes"], // what clients register for is of these
  ttl: { AuthorizationCode: 60, Grant: 3600, Interaction: 600, RefreshToken: 3600, Session: 3600 },
});
provider.on("server_error", (_, error) => console.error(error));
provider.on("grant.success", ({ oidc }) => {
  appendFileSync(ledger, `${JSON.stringify({ event: oidc.params.grant_type, person: oidc.account?.accountId })}\n`);
});

async function agreed(request, response) {
  const { params, prompt, session } = await provider.interactionDetails(request, response);
  if (prompt.name === "login") {
    const login = { accountId: request.headers["x-person"] };
    return await provider.interactionFinished(request, response, { login });
  }
  const grant = new provider.Grant({ accountId: session.accountId, clientId: params.client_id });
  grant.addOIDCScope("openid offline_access notes");
  grant.addResourceScope(resource, "notes");
  const consent = { grantId: await grant.save() };
  return await provider.interactionFinished(request, response, { consent }, { mergeWithLastSubmission: true });
}

const standard = provider.callback();
server.on("request", (request, response) => {
  const work = request.url.startsWith("/interaction/") ? agreed(request, response) : standard(request, response);
  Promise.resolve(work).catch((error) => {
    console.error(error);
    response.writeHead(500).end(String(error));
  });
});
console.log(port);
