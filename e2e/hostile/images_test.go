package hostile

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// imageKind is a manifest of one of the kinds of image updates.
func imageKind(kind, name, spec string) string {
	return "apiVersion: image.toolkit.fluxcd.io/v1\nkind: " + kind + "\nmetadata: {name: " + name + ", namespace: $ns}\nspec: {" + spec + "}\n"
}

// lists answers for lists of tags; the rest of a registry answers nothing.
func lists(h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/tags/list") {
			h(w, r)
			return
		}
		_, _ = io.WriteString(w, "{}")
	}
}

// tagged is a list of tags.
func tagged(tags ...string) http.HandlerFunc {
	return lists(says("application/json", `{"name":"app","tags":["`+strings.Join(tags, `","`)+`"]}`))
}

// nextPage is a list of one tag that says where its next page is.
func nextPage(to string) http.HandlerFunc {
	return lists(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Link", "<"+to+`>; rel="next"`)
		_, _ = io.WriteString(w, `{"tags":["1.0.0"]}`)
	})
}

// many answers with a list of n tags.
func many(n int, tag string) http.HandlerFunc {
	piece := strings.Repeat(`"`+tag+`",`, 1000)
	return lists(func(w http.ResponseWriter, _ *http.Request) {
		_, err := io.WriteString(w, `{"tags":[`)
		for i := 0; i < n && err == nil; i += 1000 {
			_, err = io.WriteString(w, piece)
		}
		_, _ = io.WriteString(w, `"x"]}`)
	})
}

// scanOf is an ImageRepository whose registry gets a login.
func scanOf(name, reason string, h http.HandlerFunc, tells ...string) fixture {
	return fixture{
		name: "list-" + name, reason: reason, serve: h, kind: "ImageRepository", tells: append(tells, "ReadOperationFailed"),
		objects: manifests(dockerLogin, imageKind("ImageRepository", object, "image: '$server/app', insecure: true, secretRef: {name: docker}, interval: 1m, timeout: 10s")),
	}
}

// scanWith is an ImageRepository whose own fields are hostile.
func scanWith(name, reason, spec string, tells ...string) fixture {
	return fixture{
		name: "spec-" + name, reason: reason, serve: tagged("1.0.0"), kind: "ImageRepository", tells: tells,
		objects: manifests(dockerLogin, login, imageKind("ImageRepository", object, spec+", interval: 1m, timeout: 5s")),
	}
}

// policyOf is an ImagePolicy that must tell, of an image with these tags.
func policyOf(name, reason, spec string, tags []string, tells ...string) fixture {
	return fixture{
		name: "policy-" + name, reason: reason, serve: tagged(tags...), kind: "ImagePolicy", tells: tells,
		objects: manifests(imageKind("ImageRepository", "app", "image: '$server/app', insecure: true, interval: 1m"),
			imageKind("ImagePolicy", object, "imageRepositoryRef: {name: app}, "+spec)),
	}
}

// scans are registries, names of images and policies that mean harm to who looks for new tags.
func scans(o *outside) []fixture {
	const limit, invalid, failure, url = "LimitExceeded", "InvalidPolicy", "Failure", "ImageURLInvalid"
	plain := []string{"1.0.0", "2.0.0"}
	quoted := strings.Repeat("9", 125)
	repeats := "(?:" + strings.Repeat(".?", 1600) + "){1000}"
	return []fixture{
		scanOf("huge", "50 MiB of tags in one answer", many(50<<20/128, strings.Repeat("a", 125)), limit),
		scanOf("short", "a million tags of a letter", many(1_000_000, "a"), limit),
		scanOf("empty", "two million tags without a letter", many(2_000_000, ""), limit),
		scanOf("endless", "tags without an end", lists(endless(`{"tags":[`, `"a",`)), limit),
		scanOf("text", "a tag without an end", lists(endless(`{"tags":["`, "a")), limit),
		scanOf("bomb", "a list that inflates to gigabytes", lists(bombing(`{"tags":`)), limit),
		scanOf("pages", "a page after the other, without an end", lists(func(w http.ResponseWriter, r *http.Request) {
			n := 0
			_, _ = fmt.Sscanf(r.URL.Query().Get("last"), "%d", &n)
			w.Header().Set("Link", fmt.Sprintf(`</v2/app/tags/list?last=%d>; rel="next"`, n+1))
			_, _ = fmt.Fprintf(w, `{"tags":["v%d"]}`, n)
		}), limit),
		scanOf("page-same", "a page whose next one is itself", nextPage("/v2/app/tags/list"), limit),
		scanOf("page-elsewhere", "a next page at a server that nobody may ask", nextPage("http://127.0.0.2:1/v2/app/tags/list?last=1"), limit),
		scanOf("page-metadata", "a next page at the metadata service", nextPage("http://169.254.169.254/latest/meta-data/"), limit),
		scanOf("page-file", "a next page that is a file of the machine", nextPage("file://"+o.file()), limit),
		scanOf("page-noise", "a next page that is no URL", nextPage("http://[::1"), limit),
		scanOf("html", "the page of a portal", lists(says("text/html", "<html>sign in</html>"))),
		scanOf("noise", "bytes that are no text", lists(says("application/json", "\x00\xff"))),
		scanOf("deep", "a hundred thousand brackets", lists(says("application/json", `{"tags":`+strings.Repeat("[", 100_000)+strings.Repeat("]", 100_000)+"}"))),
		scanOf("object", "an object where a list is wanted", lists(says("application/json", `{"tags":{"a":"b"}}`))),
		scanOf("numbers", "numbers where texts are wanted", lists(says("application/json", `{"tags":[1,2,null]}`))),
		scanOf("cut", "an answer that is shorter than it says", lists(lies(`{"tags":["1.0.0"`)), limit),
		scanOf("hangs", "a list that never comes", lists(hangs)),
		scanOf("begins", "a list that never ends, and sends nothing", lists(begins(`{"tags":["1.0.0",`))),
		scanOf("drips", "a byte each 100 ms", lists(drips(" "))),
		scanOf("circles", "redirects without an end", lists(circles)),
		scanOf("leads-metadata", "a redirect to the metadata service", lists(leads(http.StatusFound, "http://169.254.169.254"))),
		scanOf("headers", "a hundred thousand headers", lists(headers)),
		scanOf("unasked", "an answer that nothing changed, to who knows nothing", lists(statusOf(http.StatusNotModified, ""))),
		scanOf("realm", "a login that another host would get", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("WWW-Authenticate", `Bearer realm="http://127.0.0.2:1/token",service="x"`)
			w.WriteHeader(http.StatusUnauthorized)
		}, "AuthenticationFailed"),
		scanOf("panics", "a connection that is cut at once", lists(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })),

		scanWith("above", "a name that leads up", "image: '$server/../x'", url),
		scanWith("scheme", "a name that is a URL", "image: 'file:///etc/passwd'", url),
		scanWith("tag", "a name with a tag", "image: '$server/app:1'", url),
		scanWith("lines", "a name of several lines", `image: "$server/app\nkind: Secret"`, url),
		scanWith("password", "a password in the name, which messages would show", "image: 'u:"+password+"@$server/app'", url),
		scanWith("metadata", "the metadata service", "image: 169.254.169.254/app, insecure: true", "ReadOperationFailed"),
		scanWith("exclusions", "an expression that multiplies", `image: '$server/app', insecure: true, exclusionList: ['((((a{100}){100}){100}){100})']`, failure),
		scanWith("exclusions-repeat", "expressions of 3 KiB of which Go makes 128 MiB each", "image: '$server/app', insecure: true, exclusionList: ["+strings.Repeat("'"+repeats+"',", 24)+"'x']", failure),
		scanWith("exclusion-long", "an expression of a megabyte", "image: '$server/app', insecure: true, exclusionList: ['"+strings.Repeat("a|", 400_000)+"b']", failure),
		scanWith("secret-elsewhere", "a Secret whose name has a path", "image: '$server/app', insecure: true, secretRef: {name: '../vault/canary'}", "AuthenticationFailed"),
		scanWith("certificates", "certificates that are none", "image: '$server/app', secretRef: {name: docker}, certSecretRef: {name: login}", "AuthenticationFailed", "ReadOperationFailed"),
		scanWith("proxy", "a proxy that is a file", "image: '$server/app', insecure: true, proxySecretRef: {name: login}", "AuthenticationFailed", "ReadOperationFailed"),

		policyOf("range", "a range that is none", "policy: {semver: {range: '>>>1'}}", plain, invalid),
		policyOf("range-long", "a range of fifty thousand ranges", "policy: {semver: {range: '"+strings.Repeat(">=1.0.0 || ", 50_000)+"1.0.0'}}", plain, invalid),
		policyOf("pattern", "an expression that is none", "policy: {alphabetical: {}}, filterTags: {pattern: '('}", plain, invalid),
		policyOf("pattern-multiplies", "an expression that multiplies", "policy: {alphabetical: {}}, filterTags: {pattern: '((((a{100}){100}){100}){100})'}", plain, invalid),
		policyOf("pattern-repeats", "an expression of 3 KiB of which Go makes 128 MiB", "policy: {alphabetical: {}}, filterTags: {pattern: '"+repeats+"'}", plain, invalid),
		policyOf("pattern-long", "an expression of half a megabyte", "policy: {alphabetical: {}}, filterTags: {pattern: '"+strings.Repeat("a|", 250_000)+"b'}", plain, invalid),
		policyOf("numbers", "versions of 125 digits", "policy: {semver: {range: '*'}}", []string{quoted, quoted[:100] + ".0.0"}, failure),
		policyOf("exponent", "a number that is an exponent of itself", "policy: {numerical: {}}", []string{"1e999999999", "0x1p99999"}, failure),
		policyOf("nothing", "a policy that is none", "policy: {}", plain, invalid),
		policyOf("none", "tags that are no tags", "policy: {semver: {range: '*'}}", []string{`../../etc/passwd`, `$(id)`, `a\nb`, `-x`}, failure, "DependencyNotReady"),
		policyOf("elsewhere", "an image of another namespace, which lets nobody in", "policy: {alphabetical: {}}", plain, "AccessDenied", "DependencyNotReady").
			replaced("{name: app}, policy", "{name: app, namespace: vault}, policy"),
	}
}

// replaced is the fixture with another text in its objects.
func (f fixture) replaced(before, after string) fixture {
	f.objects = strings.Replace(f.objects, before, after, 1)
	return f
}

// markOf marks a value for a policy of a namespace.
func markOf(namespace string) string {
	return ` # {"$imagepolicy": "` + namespace + `:app"}`
}

// automationOf is an ImageUpdateAutomation that must tell, of the Git repository.
func automationOf(name, reason string, files tree, git, more string, tells ...string) fixture {
	if git == "" {
		git = "commit: {author: {name: bot, email: bot@example.com}}"
	}
	return fixture{
		name: name, reason: reason, files: files, kind: "ImageUpdateAutomation", tells: tells,
		objects: imageKind("ImageUpdateAutomation", object, "sourceRef: {kind: GitRepository, name: git}, interval: 1m, git: {"+git+"}"+more),
	}
}

// markers are repositories and automations that mean harm to who writes what policies chose.
func markers(o *outside) []fixture {
	const update, draft, limit = "UpdateFailed", "InvalidSourceConfiguration", "LimitExceeded"
	mark := markOf("anybody")
	marked := tree{"a.yaml": "image: x:1" + mark + "\n"}
	file := func(name, reason, text string) fixture {
		return automationOf("yaml-"+name, reason, tree{"a.yaml": text}, "", "", update, limit)
	}
	push := func(name, reason, push string) fixture {
		return automationOf("push-"+name, reason, marked, "commit: {author: {name: bot, email: bot@example.com}}, push: {"+push+"}", "", draft)
	}
	laughs := "a0: &a0 [x,x,x,x,x,x,x,x,x]\n"
	for n := 1; n < 9; n++ {
		laughs += fmt.Sprintf("a%d: &a%d [%s]\n", n, n, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d,", n-1), 9), ","))
	}
	wide, large := tree{}, tree{}
	for n := range 5100 {
		wide[fmt.Sprintf("d%d/f%d.yaml", n%50, n)] = "image: x:1" + mark + "\n"
	}
	for n := range 18 {
		large[fmt.Sprintf("f%d.yaml", n)] = "image: x:1" + mark + "\n" + strings.Repeat("# "+strings.Repeat("x", 1000)+"\n", 3900)
	}
	return []fixture{
		file("bomb", "aliases that expand to gigabytes", laughs+"image: x"+mark+"\n"),
		file("self", "an anchor that contains itself", "data: &a {k: *a}\nimage: x"+mark+"\n"),
		file("flat", "two million keys without a value", "data: {"+strings.Repeat("b,", 2_000_000)+"}\nimage: x"+mark+"\n"),
		file("deep", "brackets deeper than a stack", "image: x"+mark+"\ndata: "+strings.Repeat("[", 200_000)+strings.Repeat("]", 200_000)+"\n"),
		file("indented", "blocks deeper than a stack", nested(2000)+"image: x"+mark+"\n"),
		file("latin", "bytes that are no UTF-8", "image: \xe9"+mark+"\n"),
		file("binary", "characters that no text has", "image: \x00"+mark+"\n"),
		file("template", "a template of Helm", "image: {{ .Values.image }}"+mark+"\n{{- end }}\n"),
		file("tabs", "tabs where YAML has none", "a:\n\tb:\n\t\tc"+mark+"\n"),
		file("keys", "the same key a thousand times", strings.Repeat("k: 1\n", 1000)+"- image"+mark+"\n"),
		file("tag", "a tag of a language", "image: !!python/object/apply:os.system ['touch "+o.dir+"/was-here']"+mark+"\n- x\n"),
		automationOf("files-many", "more files than are looked at", wide, "", "", update, limit),
		automationOf("files-large", "files of 70 MiB together", large, "", "", update, limit),
		automationOf("path-above", "a directory above the repository", marked, "", ", update: {path: '../../../../etc'}", draft),
		automationOf("path-absolute", "a directory of the machine", marked, "", ", update: {path: '"+o.dir+"'}", draft),
		automationOf("path-link", "a directory that is a link out of the repository", tree{"in": link + o.dir, "a.yaml": marked["a.yaml"]}, "", ", update: {path: in}", draft),
		push("above", "a branch that is a path", "branch: '../../../../x'"),
		push("option", "a branch that is an option of a program", "branch: '--upload-pack=touch'"),
		push("lines", "a branch of several lines", `branch: "main\n0000"`),
		push("spaces", "a branch with spaces", "branch: 'a b'"),
		push("others", "a reference that is not the branch", "refspec: 'refs/heads/secret:refs/heads/main'"),
		push("pattern", "all references", "refspec: 'refs/heads/main:refs/heads/*'"),
		push("name", "what is no whole reference", "refspec: 'main:../../config'"),
		automationOf("author", "an author of several lines", marked, `commit: {author: {name: "bot\ncommitter x <x@x> 0 +0000", email: bot@example.com}}`, "", draft),
		automationOf("author-close", "an author that closes the header", marked, `commit: {author: {name: bot, email: "bot@example.com> 0 +0000\n"}}`, "", draft),
		automationOf("key", "a signing key that is none", marked, "commit: {author: {name: bot, email: bot@example.com}, signingKey: {secretRef: {name: login}}}", "", "SourceManagerFailed").with(login),
		automationOf("key-elsewhere", "a signing key of another namespace", marked, "commit: {author: {name: bot, email: bot@example.com}, signingKey: {secretRef: {name: '../vault/canary'}}}", "", "SourceManagerFailed"),
		automationOf("selector", "a selector that is none", marked, "", ", policySelector: {matchExpressions: [{key: a, operator: Near, values: [b]}]}", "InvalidPolicySelector"),
		automationOf("elsewhere", "a repository of another namespace that is not there", marked, "", "", "SourceManagerFailed").replaced("name: git}", "name: git, namespace: vault}"),
	}
}

// with is the fixture with more objects before its own.
func (f fixture) with(objects string) fixture {
	f.objects = manifests(objects, f.objects)
	return f
}

// nested is a mapping in a mapping, so deep.
func nested(depth int) string {
	var b strings.Builder
	for n := range depth {
		b.WriteString(strings.Repeat(" ", n) + "k:\n")
	}
	return b.String() + strings.Repeat(" ", depth) + "v\n"
}

// templates are messages of commits that mean harm. Each has an image to change, or no message
// would be written.
func templates(*outside) []fixture {
	const update = "UpdateFailed"
	template := func(name, reason, text string, tells ...string) fixture {
		f := automationOf(name, reason, tree{"a.yaml": "image: x:1" + markOf("template-"+name) + "\n"},
			fmt.Sprintf("commit: {author: {name: bot, email: bot@example.com}, messageTemplate: %q}", text), "", append(tells, update)...)
		f.serve = tagged("1.0.0")
		f.objects = manifests(imageKind("ImageRepository", "app", "image: '$server/app', insecure: true, interval: 1m"),
			imageKind("ImagePolicy", "app", "imageRepositoryRef: {name: app}, policy: {semver: {range: '*'}}"), f.objects)
		return f
	}
	slow := func(f fixture) fixture {
		f.within = time.Minute // ten seconds of a processor, on a machine that has none left
		return f
	}
	return []fixture{
		template("syntax", "what is no template", "{{ range }"),
		template("open", "brackets without an end", strings.Repeat("{{", 10_000)),
		template("long", "a template of 100 KB", strings.Repeat("a", 100_000)),
		template("message", "a message of a megabyte", "{{ range until 10000 }}"+strings.Repeat("a", 100)+"{{ end }}"),
		template("until", "a billion numbers", "{{ range until 1000000000 }}{{ end }}"),
		template("repeat", "a text of gigabytes", `{{ repeat 2000000000 "x" | len }}`),
		slow(template("loops", "loops in loops", "{{ range until 100000 }}{{ range until 100000 }}{{ end }}{{ end }}")),
		template("itself", "a template of itself", `{{ define "x" }}{{ template "x" }}{{ end }}{{ template "x" }}`),
		template("environment", "the environment of the agent", `{{ env "HOME" }}`),
		template("expands", "the same by another name", `{{ expandenv "$HOME" }}`),
		template("network", "a question to a server of names", `{{ getHostByName "localhost" }}`),
		template("clock", "a clock, so that each message is another one", `{{ now }}`),
		template("random", "chance, for the same", `{{ randAlpha 1000000 }}`),
		template("keys", "keys without an end", `{{ range until 1000 }}{{ genPrivateKey "rsa" }}{{ end }}`),
		template("fails", "a template that fails, with a text", `{{ fail "`+strings.Repeat("no", 5000)+`" }}`),
		template("nothing", "a field that nobody has", "{{ .Nothing.At.All }}"),
		template("index", "an index beyond the end", `{{ index .Changed.Changes 1000000 }}`),
		template("call", "a value that is called", `{{ call .Values }}`),
		template("removed", "a field that Flux removed", "{{ range .Updated.Images }}{{ end }}", "RemovedTemplateField"),
	}
}

// receivers are Receivers whose own fields mean harm. What senders do, syncer/receive has the
// tests of.
func receivers(*outside) []fixture {
	const expression, validation, missing = "InvalidCELExpression", "ValidationFailed", "TokenNotFound"
	token := secret("hook", map[string]string{"token": password})
	receiver := func(name, reason, spec string, tells ...string) fixture {
		if !strings.Contains(spec, "resources:") {
			spec += ", resources: [{kind: GitRepository, name: git}]"
		}
		if !strings.Contains(spec, "type:") {
			spec += ", type: generic"
		}
		if !strings.Contains(spec, "secretRef:") && !strings.Contains(spec, "generic-oidc") {
			spec += ", secretRef: {name: hook}"
		}
		return fixture{
			name: name, reason: reason, kind: "Receiver", tells: tells, files: tree{"a.yaml": "a: 1\n"},
			objects: manifests(token, "apiVersion: notification.toolkit.fluxcd.io/v1\nkind: Receiver\nmetadata: {name: bad, namespace: $ns}\nspec: {interval: 1m, "+spec+"}\n"),
		}
	}
	oidc := func(name, reason, provider string) fixture {
		return receiver("oidc-"+name, reason, "type: generic-oidc, oidcProviders: [{issuerURL: 'https://issuer.invalid', "+provider+"}]", expression)
	}
	deep := strings.Repeat("(", 5000) + "true" + strings.Repeat(")", 5000)
	return []fixture{
		receiver("filter", "an expression that is none", "resourceFilter: 'req.ref =='", expression),
		receiver("filter-text", "an expression that is a text", `resourceFilter: "'yes'"`, expression),
		receiver("filter-unknown", "a variable that there is not", "resourceFilter: 'secrets.token == request'", expression),
		receiver("filter-deep", "brackets deeper than a stack", "resourceFilter: '"+deep+"'", expression),
		receiver("filter-long", "an expression of 240 KB", "resourceFilter: '"+strings.Repeat("true && ", 30_000)+"true'", expression),
		receiver("filter-pattern", "a pattern that multiplies", `resourceFilter: "req.ref.matches('((((a{100}){100}){100}){100})')"`, expression),
		receiver("filter-one", "the same of one entry", "resources: [{kind: GitRepository, name: git, filter: '"+deep+"'}]", expression),
		receiver("kind-core", "a Secret that is called a source", "resources: [{kind: GitRepository, apiVersion: v1, name: git}]", validation),
		receiver("kind-group", "a kind of another group", "resources: [{kind: Kustomization, apiVersion: 'kustomize.config.k8s.io/v1', name: x}]", validation),
		receiver("kind-path", "a version that is a path", "resources: [{kind: GitRepository, apiVersion: '../../api/v1/secrets', name: git}]", validation),
		receiver("all", "all objects, without a label", "resources: [{kind: GitRepository, name: '*'}]", validation),
		receiver("secret-missing", "a Secret that is not there", "secretRef: {name: none}", missing),
		receiver("secret-elsewhere", "a Secret whose name has a path", "secretRef: {name: '../vault/canary'}", missing),
		receiver("secret-empty", "a Secret without a token, whose path anybody could tell", "secretRef: {name: empty}", missing).with(secret("empty", map[string]string{"other": "x"})),
		receiver("gcr", "a Receiver of Google that does not say whose pushes it takes", "type: gcr", missing),
		oidc("variable", "a variable that is none", "variables: [{name: a, expression: 'claims.'}], validations: [{expression: 'vars.a == 1', message: x}]"),
		oidc("variable-deep", "one deeper than a stack", "variables: [{name: a, expression: '"+deep+"'}], validations: [{expression: 'vars.a == true', message: x}]"),
		oidc("validation", "a validation that is none", "validations: [{expression: '(', message: x}]"),
		oidc("validation-unknown", "a validation of what nobody said", "validations: [{expression: 'secrets.token', message: x}]"),
	}
}
