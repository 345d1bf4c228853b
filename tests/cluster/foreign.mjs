// Judges resources of other projects by their own types: `node foreign.mjs NODE_MODULES`, a list of
// resources on standard input, a list of what is wrong with them on standard output. Their validators
// let unknown fields pass, so a field is also looked for among all names that the project's types have.
import { readFileSync, readdirSync } from "node:fs";
import { pathToFileURL } from "node:url";

const PACKAGES = {
  "gateway.networking.k8s.io/v1": ["gateway-api", "IoK8sSigsGatewayApiApisV1"],
  "cert-manager.io/v1": ["cert-manager", "ComGithubCertManagerCertManagerPkgApisCertmanagerV1"],
  "monitoring.coreos.com/v1": [
    "prometheus-operator",
    "ComGithubPrometheusOperatorPrometheusOperatorPkgApisMonitoringV1",
  ],
};
const home = `${process.argv[2]}/@kubernetes-models`;

function namesOf(folder) {
  const names = new Set();
  for (const file of readdirSync(folder, { recursive: true }))
    if (file.endsWith(".d.ts"))
      for (const found of readFileSync(`${folder}/${file}`, "utf8").matchAll(/^\s*"?(\w+)"?\??:/gm))
        names.add(found[1]);
  return names;
}

function* fieldsOf(value) {
  if (Array.isArray(value)) for (const each of value) yield* fieldsOf(each);
  else if (value && typeof value === "object")
    for (const [name, inner] of Object.entries(value)) {
      yield name;
      if (!["matchLabels", "labels", "annotations"].includes(name)) yield* fieldsOf(inner);
    }
}

const wrong = [];
for (const each of JSON.parse(readFileSync(0, "utf8"))) {
  const [name, prefix] = PACKAGES[each.apiVersion];
  const folder = `${home}/${name}`;
  const { validate } = await import(pathToFileURL(`${folder}/_schemas/${prefix}${each.kind}.js`));
  if (!validate(each))
    for (const error of validate.errors)
      wrong.push(`${each.kind}${error.instancePath}: ${error.keyword}`);
  const known = new Set([...namesOf(folder), ...namesOf(`${home}/apimachinery`)]);
  for (const field of fieldsOf(each.spec)) if (!known.has(field)) wrong.push(`${each.kind}: no ${field}`);
}
console.log(JSON.stringify(wrong));
