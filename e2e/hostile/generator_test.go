package hostile

import (
	"fmt"
	"slices"
	"strings"
)

// copyOf is a copy operation of an ArtifactGenerator in YAML flow style.
func copyOf(from, to string, more ...string) string {
	return "{" + strings.Join(append([]string{fmt.Sprintf("from: %q, to: %q", from, to)}, more...), ", ") + "}"
}

// generatorOf is an ArtifactGenerator that must tell, of the Git repository.
func generatorOf(name, reason string, files tree, copies []string, tells ...string) fixture {
	f := generatorWith(name, reason, "artifacts: [{name: made, copy: ["+strings.Join(copies, ", ")+"]}]", tells...)
	if files != nil {
		f.files = files
	}
	return f
}

// generatorWith is one with a spec in YAML flow style, besides its source.
func generatorWith(name, reason, spec string, tells ...string) fixture {
	return fixture{
		name: name, reason: reason, kind: "ArtifactGenerator", tells: tells, files: tree{"a.yaml": "a: 1\n"},
		objects: "apiVersion: source.extensions.fluxcd.io/v1beta1\nkind: ArtifactGenerator\nmetadata: {name: bad, namespace: $ns}\n" +
			"spec: {sources: [{alias: git, kind: GitRepository, name: git}], " + spec + "}\n",
	}
}

// generators are ArtifactGenerators whose patterns, paths, files and archives mean harm.
func generators(o *outside) []fixture {
	const build, invalid = "BuildFailed", "ValidationFailed"
	many := tree{}
	for n := range 4000 {
		many[fmt.Sprintf("d%d/%sf%d.yaml", n%40, strings.Repeat("deep/", 10), n)] = "x: 1\n"
	}
	stars := strings.Repeat("**/", 300)
	excludes := make([]string, 100)
	for n := range excludes {
		excludes[n] = fmt.Sprintf("%q", stars+"*"+strings.Repeat("x*", 40)+fmt.Sprint(n))
	}
	into := make([]string, 300)
	for n := range into {
		into[n] = copyOf("@git/**", fmt.Sprintf("@artifact/c%d/", n))
	}
	over := make([]string, 900)
	for n := range over {
		over[n] = copyOf("@git/**", "@artifact/", `exclude: ["*.md"]`)
	}
	values := func(name, reason, text string) fixture {
		return generatorOf("merge-"+name, reason, tree{"values.yaml": "a: 1\n", "bad.yaml": text},
			[]string{copyOf("@git/values.yaml", "@artifact/v.yaml"), copyOf("@git/bad.yaml", "@artifact/v.yaml", "strategy: Merge")}, build)
	}
	below := func(name, reason, text string) fixture {
		return generatorOf("under-"+name, reason, tree{"values.yaml": "a: 1\n", "bad.yaml": text},
			[]string{copyOf("@git/bad.yaml", "@artifact/v.yaml"), copyOf("@git/values.yaml", "@artifact/v.yaml", "strategy: Merge")}, build)
	}
	laughs := "a0: &a0 [x,x,x,x,x,x,x,x,x]\n"
	for n := 1; n < 9; n++ {
		laughs += fmt.Sprintf("a%d: &a%d [%s]\n", n, n, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d,", n-1), 9), ","))
	}
	wide := tree{}
	for n := range 1001 {
		wide[fmt.Sprintf("apps/a%d/x", n)] = "x"
	}
	all := []fixture{
		generatorOf("stars", "two stars three hundred times", many, []string{copyOf("@git/"+stars+"nothing", "@artifact/")}, build),
		generatorOf("star-each", "a star before each character", many, []string{copyOf("@git/"+strings.Repeat("*x", 500), "@artifact/")}, build),
		generatorOf("braces", "3^140 alternatives", many, []string{copyOf("@git/"+strings.Repeat("{a,b,c}", 140), "@artifact/")}, build),
		generatorOf("braces-nested", "alternatives in alternatives, 200 deep", many, []string{copyOf("@git/"+strings.Repeat("{a,", 200)+"b"+strings.Repeat("}", 200), "@artifact/")}, build),
		generatorOf("bracket", "a bracket that is open", nil, []string{copyOf("@git/[a", "@artifact/")}, invalid),
		generatorOf("bracket-slash", "a bracket with what separates directories", nil, []string{copyOf("@git/a[.-9]b", "@artifact/")}, invalid),
		generatorOf("excludes", "a hundred patterns for each of four thousand files", many,
			[]string{copyOf("@git/**", "@artifact/", "exclude: ["+strings.Join(excludes, ", ")+"]")}, build),
		generatorOf("copies", "a repository three hundred times in itself", many, into, build),
		generatorOf("again", "four thousand files, nine hundred times over themselves", many, over, build),
		generatorOf("above", "a path that leads up", nil, []string{copyOf("@git/../../../../etc/passwd", "@artifact/")}, invalid),
		generatorOf("above-pattern", "a pattern that leads up", nil, []string{copyOf("@git/*/../../../../etc/*", "@artifact/")}, invalid),
		generatorOf("absolute", "a path that begins at the root", nil, []string{copyOf("@git/"+o.file(), "@artifact/")}, invalid),
		generatorOf("link", "a link to a file of the machine", tree{"bad.yaml": link + o.file()}, []string{copyOf("@git/bad.yaml", "@artifact/")}, build),
		generatorOf("link-directory", "a link to a directory of the machine", tree{"bad": link + o.dir}, []string{copyOf("@git/bad/**", "@artifact/")}, build),
		generatorOf("link-pattern", "a link that a pattern matches", tree{"in/bad.yaml": link + o.file()}, []string{copyOf("@git/in/*.yaml", "@artifact/")}, build),
		generatorOf("conflict", "a file, and files below it", tree{"a.yaml": "a", "d/x": "x"}, []string{copyOf("@git/a.yaml", "@artifact/d"), copyOf("@git/d/**", "@artifact/d/")}, build),
		values("bomb", "aliases that expand to gigabytes", laughs),
		below("bomb", "the same in the file that is there", laughs),
		values("self", "an anchor that contains itself", "data: &a {k: *a}\n"),
		values("deep", "brackets deeper than a stack", strings.Repeat("[", 200_000)+strings.Repeat("]", 200_000)),
		values("keys", "a mapping of a hundred thousand fields", manyKeys(100_000)),
		values("flat", "a list of a million texts", "a: ["+strings.Repeat("x,", 900_000)+"x]\n"),
		below("flat", "braces with a million texts, in the file that is there", "a: {"+strings.Repeat("b,", 900_000)+"b}\n"),
		values("documents", "a million documents, of which one would count", strings.Repeat("---\n{}\n", 1<<20)),
		values("large", "a file beyond the limit", "k: "+strings.Repeat("x", 11<<20)+"\n"),
		values("list", "a list, which is no values", "[1, 2]\n"),
		values("binary", "bytes that are no text", "a: \"\x00\xff\"\n"),
		generatorWith("unknown", "a source that nobody declared", `artifacts: [{name: made, copy: [`+copyOf("@other/x", "@artifact/")+`]}]`, invalid),
		generatorWith("self", "an artifact that is made of itself", "sources: [{alias: git, kind: ExternalArtifact, name: made}], artifacts: [{name: made, copy: ["+copyOf("@git/**", "@artifact/more/")+"]}]", "SourceFetchFailed", invalid),
		generatorWith("names", "two artifacts of one name", "artifacts: [{name: made, copy: ["+copyOf("@git/a.yaml", "@artifact/")+"]}, {name: made, copy: ["+copyOf("@git/a.yaml", "@artifact/")+"]}]", invalid),
		generatorWith("capture-twice", "a capture that has two values", `pathPattern: "@git/{app}/{app}", artifacts: [{name: "{app}", copy: [`+copyOf("@git/{app}/**", "@artifact/")+`]}]`, invalid),
	}
	all[len(all)-3].objects = strings.Replace(all[len(all)-3].objects, "sources: [{alias: git, kind: GitRepository, name: git}], ", "", 1)
	// Patterns may take twenty seconds of a processor, of which this machine may have none left.
	for n := range all {
		if slices.Contains([]string{"stars", "excludes", "again"}, all[n].name) {
			all[n].within = waited
		}
	}
	directories := generatorWith("directories", "an artifact for each of a thousand and one directories", `pathPattern: "@git/apps/{app}", artifacts: [{name: "{app}", copy: [`+copyOf("@git/apps/{app}/**", "@artifact/")+`]}]`, invalid)
	directories.files = wide
	label := generatorWith("label", "a directory whose name is a label of several lines", `pathPattern: "@git/apps/{app}", artifacts: [{name: "{app}", copy: [`+copyOf("@git/apps/{app}/**", "@artifact/")+`]}]`, invalid)
	label.files = tree{"apps/a b: c/x": "x"}
	taken := generatorWith("taken", "the name of an artifact that is another's", "artifacts: [{name: theirs, copy: ["+copyOf("@git/a.yaml", "@artifact/")+"]}]", "NameTaken")
	taken.objects = "apiVersion: source.toolkit.fluxcd.io/v1\nkind: ExternalArtifact\nmetadata: {name: theirs, namespace: $ns}\nspec: {}\n---\n" + taken.objects
	all = append(all, directories, label, taken)
	for _, a := range tarballs(o, "", file("a.yaml", configMap("a"))) {
		if slices.Contains([]string{"above", "absolute", "bomb", "names", "directories", "noise", "cut", "gzip-twice", "size", "header-sum", "sparse"}, a.name) {
			all = append(all, generatorOf("extract-"+a.name, a.reason, tree{"a.tgz": string(a.archive)}, []string{copyOf("@git/a.tgz", "@artifact/", "strategy: Extract")}, build))
		}
	}
	return all
}

// manyKeys is a mapping of so many fields.
func manyKeys(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "k%d: 1\n", i)
	}
	return b.String()
}
