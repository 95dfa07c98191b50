// A company's two authorization servers, that are not ours (oidc-provider): the identity provider, which makes identity
// assertion grants (ID-JAG) of ID tokens, and the one of an MCP server, which grants tokens for those, and for ID tokens.
//
//   node enterprise.mjs MODULES RESOURCE SECONDS LEDGER REDIRECT
//
// MODULES is a folder with node_modules, RESOURCE the URL of the MCP server, SECONDS the life of ID tokens and of access
// tokens, LEDGER the file that gets each request with what it showed, REDIRECT the broker's. The first line on stdout has
// both ports. Whoever comes with the header `X-Person: NAME` is that person, and agrees to all. `POST /fault` has the
// identity provider misbehave as its body names; `POST /client?NAME AUDIENCE` gives a token of a person's MCP client.

import { appendFileSync } from "node:fs";
import { createServer } from "node:http";
import { createRequire } from "node:module";
import process from "node:process";
import { pathToFileURL } from "node:url";

const [modules, resource, seconds, ledger, redirect] = process.argv.slice(2);
const load = createRequire(`${modules}/`);
const { errors, Provider } = await import(pathToFileURL(load.resolve("oidc-provider")));
const jose = await import(pathToFileURL(load.resolve("jose")));

const EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange";
const ASSERTION = "urn:ietf:params:oauth:grant-type:jwt-bearer";
const ID_JAG = "urn:ietf:params:oauth:token-type:id-jag";
const ID_TOKEN = "urn:ietf:params:oauth:token-type:id_token";
const BROKER = { client_id: "the-broker", client_secret: "s3cr3t-of-the-broker" };
const WIKI = { client_id: "broker-at-wiki", client_secret: "s3cr3t-at-wiki" };

const { privateKey, publicKey } = await jose.generateKeyPair("ES256", { extractable: true });
const stranger = (await jose.generateKeyPair("ES256")).privateKey;
const jwk = { ...(await jose.exportJWK(privateKey)), kid: "k1", use: "sig", alg: "ES256" };
const keys = jose.createLocalJWKSet({ keys: [{ ...(await jose.exportJWK(publicKey)), kid: "k1", alg: "ES256" }] });
let fault = "";

async function listening() {
  const server = createServer();
  await new Promise((done) => server.listen(0, "127.0.0.1", done));
  return [server, server.address().port, `http://127.0.0.1:${server.address().port}`];
}
const [peopleServer, peoplePort, people] = await listening();
const [wikiServer, wikiPort, wiki] = await listening();

const common = {
  cookies: { keys: ["of a test"] },
  findAccount: (_, accountId) => ({ accountId, claims: () => ({ sub: accountId }) }),
  responseTypes: ["code"],
};

const idp = new Provider(people, {
  ...common,
  clients: [{
    ...BROKER,
    redirect_uris: [redirect],
    grant_types: ["authorization_code", "refresh_token", EXCHANGE],
    id_token_signed_response_alg: "ES256",
    response_types: ["code"],
  }],
  clientDefaults: { id_token_signed_response_alg: "ES256" },
  features: { devInteractions: { enabled: false }, revocation: { enabled: true } },
  interactions: { url: (_, interaction) => `/interaction/${interaction.uid}` },
  jwks: { keys: [jwk] },
  rotateRefreshToken: true,
  scopes: ["openid", "offline_access"],
  ttl: { AccessToken: 60, AuthorizationCode: 60, Grant: 3600, IdToken: Number(seconds), Interaction: 600, RefreshToken: 3600, Session: 3600 },
});

idp.registerGrantType(EXCHANGE, async (ctx) => {
  const { client, params } = ctx.oidc;
  if (params.requested_token_type !== ID_JAG || params.subject_token_type !== ID_TOKEN) throw new errors.InvalidRequest("types");
  const { payload } = await jose.jwtVerify(params.subject_token, keys, { issuer: people, audience: client.clientId })
    .catch((error) => { throw new errors.InvalidGrant(`subject_token: ${error.code}`); });
  if (fault === "denied") throw new errors.AccessDenied("the company does not want it");
  const of = {
    iss: people,
    sub: payload.sub,
    aud: fault === "other audience" ? "https://other.example" : params.audience,
    resource: fault === "other resource" ? "https://other.example/mcp" : params.resource,
    client_id: fault === "other client" ? "another" : WIKI.client_id,
    scope: params.scope,
    jti: crypto.randomUUID(),
    iat: Math.floor(Date.now() / 1000) - (fault === "expired" ? 600 : 0),
    exp: Math.floor(Date.now() / 1000) + (fault === "expired" ? -300 : 300),
  };
  const typ = fault === "no assertion" ? "JWT" : "oauth-id-jag+jwt";
  const jag = await new jose.SignJWT(of).setProtectedHeader({ alg: "ES256", kid: "k1", typ })
    .sign(fault === "forged" ? stranger : privateKey);
  const issued_token_type = fault === "other type" ? "urn:ietf:params:oauth:token-type:access_token" : ID_JAG;
  ctx.body = { issued_token_type, access_token: jag, token_type: "N_A", expires_in: 300 };
}, ["audience", "requested_token_type", "resource", "scope", "subject_token", "subject_token_type"]);

const offered = process.env.OFFERED?.split(" ") ?? [ASSERTION, EXCHANGE];
const authority = new Provider(wiki, {
  ...common,
  clients: [
    { ...WIKI, redirect_uris: [], response_types: [], grant_types: offered },
    { client_id: "server", client_secret: "s3cr3t", redirect_uris: [], response_types: [], grant_types: [] },
  ],
  features: {
    devInteractions: { enabled: false },
    introspection: { enabled: true, allowedPolicy: (_, client) => client.clientId === "server" },
    revocation: { enabled: true },
    resourceIndicators: { enabled: true, getResourceServerInfo: () => resourceServer },
  },
  scopes: ["notes"],
});
const resourceServer = { scope: "notes", audience: resource, accessTokenTTL: Number(seconds), accessTokenFormat: "opaque" };

function refused(why) {
  appendFileSync(ledger, `${JSON.stringify({ event: "refused", why })}\n`);
  throw new errors.InvalidGrant(why);
}

async function granted(ctx, token, rules) {
  const { client, params } = ctx.oidc;
  const { payload } = await jose.jwtVerify(token, keys, { issuer: people, ...rules })
    .catch((error) => refused(`${error.code} ${error.claim ?? ""}`));
  if (rules.typ && payload.client_id !== client.clientId) refused("of another client");
  if (rules.typ && payload.resource !== params.resource) refused("for another resource");
  if (params.resource !== resource) throw new errors.InvalidTarget();
  const grant = new authority.Grant({ accountId: payload.sub, clientId: client.clientId });
  const access = new authority.AccessToken({ accountId: payload.sub, client, grantId: await grant.save(), gty: "asserted" });
  access.resourceServer = new authority.ResourceServer(resource, resourceServer);
  access.scope = "notes";
  ctx.body = { access_token: await access.save(), token_type: "Bearer", expires_in: Number(seconds), scope: "notes" };
  appendFileSync(ledger, `${JSON.stringify({ event: "grant", grant: params.grant_type, person: payload.sub })}\n`);
}
if (offered.includes(ASSERTION)) {
  const rules = { audience: wiki, typ: "oauth-id-jag+jwt", requiredClaims: ["exp", "jti", "client_id", "resource"] };
  authority.registerGrantType(ASSERTION, (ctx) => granted(ctx, ctx.oidc.params.assertion, rules), ["assertion", "resource", "scope"]);
}
if (offered.includes(EXCHANGE)) {
  const form = ["resource", "scope", "subject_token", "subject_token_type", "requested_token_type"];
  const rules = { audience: BROKER.client_id };
  authority.registerGrantType(EXCHANGE, (ctx) => granted(ctx, ctx.oidc.params.subject_token, rules), form);
}

for (const [name, provider] of Object.entries({ idp, wiki: authority })) {
  provider.on("server_error", (_, error) => console.error(error));
  provider.use(async (ctx, next) => {
    await next();
    if (ctx.method !== "POST" || !ctx.oidc?.body) return;
    const shown = { event: "request", at: name, path: ctx.path, status: ctx.status, form: ctx.oidc.body, authorization: ctx.get("authorization") };
    appendFileSync(ledger, `${JSON.stringify(shown)}\n`);
  });
}

async function agreed(request, response) {
  const { params, prompt, session } = await idp.interactionDetails(request, response);
  if (prompt.name === "login") {
    return await idp.interactionFinished(request, response, { login: { accountId: request.headers["x-person"] } });
  }
  const grant = new idp.Grant({ accountId: session.accountId, clientId: params.client_id });
  grant.addOIDCScope("openid offline_access");
  const consent = { grantId: await grant.save() };
  return await idp.interactionFinished(request, response, { consent }, { mergeWithLastSubmission: true });
}

async function told(request, response) {
  if (request.url === "/fault") {
    fault = "";
    for await (const part of request) fault += part;
    return response.end();
  }
  const [name, audience] = decodeURIComponent(request.url.split("?")[1]).split(" ");
  const made = new jose.SignJWT({ iss: people, sub: name, aud: audience, scope: "" }).setProtectedHeader({ alg: "ES256", kid: "k1" });
  return response.end(await made.setIssuedAt().setExpirationTime("1h").sign(privateKey));
}

const standard = idp.callback();
peopleServer.on("request", (request, response) => {
  const path = request.url.split("?")[0];
  const work = path.startsWith("/interaction/") ? agreed : ["/fault", "/client"].includes(path) ? told : standard;
  Promise.resolve(work(request, response)).catch((error) => {
    console.error(error);
    response.writeHead(500).end(String(error));
  });
});
wikiServer.on("request", authority.callback());
console.log(peoplePort, wikiPort);
