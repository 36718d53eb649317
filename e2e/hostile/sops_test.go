package hostile

import (
	"fmt"
	"strings"
)

// sopsFile is the part of a file by which SOPS knows it.
func sopsFile(keys string) string {
	return "apiVersion: v1\nkind: Secret\nmetadata: {name: a}\nstringData:\n  k: ENC[AES256_GCM,data:aaaa,iv:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa=,tag:aaaaaaaaaaaaaaaaaaaaaa==,type:str]\n" +
		"sops:\n  lastmodified: '2026-01-01T00:00:00Z'\n  version: 3.9.0\n  mac: ENC[AES256_GCM,data:aaaa,iv:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa=,tag:aaaaaaaaaaaaaaaaaaaaaa==,type:str]\n" + indented(keys, 2)
}

const ageFile = "-----BEGIN AGE ENCRYPTED FILE-----\nYWdlLWVuY3J5cHRpb24ub3JnL3YxCi0+IFgyNTUxOSBhYWFhYWFhYWFhYWFhYWFhYWFh\n-----END AGE ENCRYPTED FILE-----\n"

func ageKey(recipient, enc string) string {
	return "- recipient: " + recipient + "\n  enc: |\n" + indented(enc, 4)
}

const recipient = "age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p"

// sopsFiles are files that say that SOPS encrypted them, and keys.
func sopsFiles(o *outside) []fixture {
	yaml := func(name, reason, keys string) fixture { return encrypted(name, reason, "a.yaml", sopsFile(keys)) }
	keyed := func(f fixture, values map[string]string) fixture {
		f.objects = manifests(secret("keys", values), strings.Replace(f.objects, "decryption: {provider: sops}", "decryption: {provider: sops, secretRef: {name: keys}}", 1))
		return f
	}
	vault := "hc_vault:\n- vault_address: '" + o.inside.URL + "'\n  engine_path: transit\n  key_name: k\n  created_at: '2026-01-01T00:00:00Z'\n  enc: 'vault:v1:aaaa'\n"
	many := "age:\n" + strings.Repeat(ageKey(recipient, ageFile), 200)
	groups := "shamir_threshold: 200\nkey_groups:\n" + strings.Repeat("- age:\n"+indented(ageKey(recipient, ageFile), 2), 80)
	armor := func(body string) string {
		return "pgp:\n- created_at: '2026-01-01T00:00:00Z'\n  fp: FBC7B9E2A4F9289AC0C1D4843D16CEE4A27381B4\n  enc: |\n" + indented("-----BEGIN PGP MESSAGE-----\n\n"+body+"\n-----END PGP MESSAGE-----\n", 4)
	}
	return []fixture{
		yaml("no-keys", "a file that names no key", "age: []\n"),
		yaml("unknown-key", "a key that nobody has", "age:\n"+ageKey(recipient, ageFile)),
		yaml("recipient", "a recipient that is none", "age:\n"+ageKey("age1nothing", ageFile)),
		yaml("recipient-plugin", "a recipient that names a program", "age:\n"+ageKey("age1touch1qqqq", ageFile)),
		yaml("recipient-ssh", "a recipient of SSH, whose keys are files of the machine", "age:\n"+ageKey("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl", ageFile)),
		yaml("age-noise", "a file of age that is none", "age:\n"+ageKey(recipient, "nothing")),
		yaml("keys-many", "two hundred keys, each of which is tried", many),
		yaml("groups-many", "eighty groups of keys, of which two hundred are needed", groups),
		yaml("groups-nested", "groups that are no groups", "key_groups: [[[]], null, 5]\n"),
		yaml("threshold", "a negative threshold", "shamir_threshold: -1\nkey_groups: [{age: []}, {age: []}]\n"),
		yaml("type", "a type of key that there is none of", "nothing: [{enc: x}]\n"),
		yaml("date", "a date that is none", "lastmodified: yesterday\nage: []\n"),
		yaml("vault", "a Vault server inside, which would get a token", vault),
		keyed(yaml("vault-token", "the same, with a token that names no server", vault), map[string]string{"sops.vault-token": password}),
		keyed(yaml("vault-address", "a token for a server that is another one's", vault), map[string]string{"sops.vault-token": password, "sops.vault-address": "https://vault.example.com"}),
		yaml("azure", "a key of Azure at a server inside", "azure_kv: [{vault_url: '"+o.inside.URL+"', name: k, version: v, created_at: '2026-01-01T00:00:00Z', enc: aaaa}]\n"),
		keyed(yaml("azure-login", "the same, with a login", "azure_kv: [{vault_url: '"+o.inside.URL+"', name: k, version: v, created_at: '2026-01-01T00:00:00Z', enc: aaaa}]\n"),
			map[string]string{"sops.azure-kv": "tenantId: x\nclientId: y\nclientSecret: " + password + "\nauthorityHost: " + o.inside.URL + "\n"}),
		keyed(yaml("aws", "a key of a region that is an address", "kms: [{arn: 'arn:aws:kms:localhost/x:1:key/a', created_at: '2026-01-01T00:00:00Z', enc: aaaa}]\n"), map[string]string{"sops.aws-kms": "aws_access_key_id: a\naws_secret_access_key: " + password + "\n"}),
		yaml("aws-role", "a role of somebody else's, and a profile of the machine", "kms: [{arn: 'arn:none', role: 'arn:aws:iam::1:role/admin', aws_profile: admin, created_at: '2026-01-01T00:00:00Z', enc: aaaa}]\n"),
		keyed(yaml("gcp", "credentials that name a program", "gcp_kms: [{resource_id: x, created_at: '2026-01-01T00:00:00Z', enc: aaaa}]\n"),
			map[string]string{"sops.gcp-kms": `{"type":"external_account","audience":"x","subject_token_type":"x","token_url":"` + o.inside.URL + `","credential_source":{"executable":{"command":"touch ` + o.dir + `/was-here"}}}`}),
		keyed(yaml("gcp-file", "credentials that name a file", "gcp_kms: [{resource_id: x, created_at: '2026-01-01T00:00:00Z', enc: aaaa}]\n"),
			map[string]string{"sops.gcp-kms": `{"type":"external_account","audience":"x","subject_token_type":"x","token_url":"` + o.inside.URL + `","credential_source":{"file":"` + o.file() + `"}}`}),
		keyed(yaml("gcp-url", "credentials that come from a server inside", "gcp_kms: [{resource_id: x, created_at: '2026-01-01T00:00:00Z', enc: aaaa}]\n"),
			map[string]string{"sops.gcp-kms": `{"type":"external_account","audience":"x","subject_token_type":"x","token_url":"` + o.inside.URL + `","credential_source":{"url":"` + o.inside.URL + `"}}`}),
		yaml("pgp", "a message of PGP that is none", armor("aaaa")),
		yaml("pgp-large", "a message of PGP of a megabyte", armor(strings.Repeat(strings.Repeat("a", 64)+"\n", 16<<10))),
		yaml("pgp-fingerprint", "a fingerprint that is a path", "pgp: [{fp: '../../../../etc/passwd', enc: x, created_at: '2026-01-01T00:00:00Z'}]\n"),
		keyed(yaml("key-age", "a key of age that is none", "age: []\n"), map[string]string{"a.agekey": "AGE-SECRET-KEY-1NOTHING"}),
		keyed(yaml("key-plugin", "a key of age that names a program", "age: []\n"), map[string]string{"a.agekey": "AGE-PLUGIN-TOUCH-1QQQQ"}),
		keyed(yaml("key-pgp", "a key of PGP that is none", "age: []\n"), map[string]string{"a.asc": "-----BEGIN PGP PRIVATE KEY BLOCK-----\n\n" + strings.Repeat("a", 100_000) + "\n-----END PGP PRIVATE KEY BLOCK-----\n"}),
		keyed(yaml("key-aws", "keys of AWS that are YAML with an anchor of itself", "age: []\n"), map[string]string{"sops.aws-kms": "a: &a {k: *a}\n"}),
		keyed(yaml("key-missing", "a Secret that is not there", "age: []\n"), nil),
		encrypted("mac", "a sum of a megabyte", "a.yaml", "apiVersion: v1\nkind: Secret\nmetadata: {name: a}\nsops:\n  lastmodified: '2026-01-01T00:00:00Z'\n  mac: "+strings.Repeat("x", 1<<20)+"\n  age:\n"+indented(ageKey(recipient, ageFile), 2)),
		encrypted("regex", "which values are encrypted says a pattern of ten billion states", "a.yaml", sopsFile("encrypted_regex: '((a{0,900}){0,900}){0,900}'\nage: []\n")),
		encrypted("large", "a file beyond the limit", "a.yaml", sopsFile("age: []\n")+"x: "+strings.Repeat("x", 6<<20)+"\n"),
		encrypted("null", "null where SOPS has its part", "a.yaml", "apiVersion: v1\nkind: Secret\nmetadata: {name: a}\nsops: null\nstringData: {k: 'ENC[AES256_GCM,data:a,iv:a,tag:a,type:str]'}\nx: [\n"),
		encrypted("list", "a list where SOPS has its part", "a.yaml", "apiVersion: v1\nkind: Secret\nmetadata: {name: a}\nsops: [1]\nstringData: {k: x}\nx: [\n"),
		generated("ini", "settings that SOPS encrypted, and cannot read", "a.ini", "[a]\nk = ENC[x]\n[sops]\nversion = 3.9.0\nmac = x\nlastmodified = 2026-01-01T00:00:00Z\nage__list_0__map_recipient = "+recipient+"\nage__list_0__map_enc = x\n"),
	}
}

// generated is a Secret of a file that SOPS encrypted.
func generated(name, reason, file, text string) fixture {
	field := "files"
	if strings.HasSuffix(file, ".env") {
		field = "envs"
	}
	f := encrypted(name, reason, file, text)
	f.files["app/kustomization.yaml"] = fmt.Sprintf("secretGenerator: [{name: g, %s: [%s]}]\n", field, file)
	return f
}
