package docs

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
)

// TestLinks: every link of a page to something in the repository leads to a file that is
// there, and to a heading that it has. Every page is reached from the README.
func TestLinks(t *testing.T) {
	files := sources(t)
	if pages := pagesOf(files); len(pages) < 100 {
		t.Errorf("read only %d pages", len(pages))
	}
	for _, problem := range deadLinks(files) {
		t.Error(problem)
	}
	for _, page := range unreached(files, "README.md") {
		// Repositories of the example are read beside their files.
		if !strings.HasPrefix(page, "e2e/testdata/") {
			t.Errorf("no link leads to %s", page)
		}
	}
	const contents = "docs/README.md"
	listed := map[string]bool{contents: true}
	for _, l := range linksOf(files[contents]) {
		listed[l.leadsTo(contents)] = true
	}
	for _, page := range pagesOf(files) {
		if path.Dir(page) == "docs" && !listed[page] {
			t.Errorf("%s does not say what %s is for", contents, page)
		}
	}
}

// TestNamedPages: a page that code, a manifest or another page names is there, and so is the
// heading.
func TestNamedPages(t *testing.T) {
	files := sources(t)
	found := 0
	for at, text := range files {
		if at == "docs/links_test.go" || !strings.Contains(text, "docs/") {
			continue
		}
		// A file of repositories that tests make.
		text = strings.ReplaceAll(text, "docs/readme.md", "")
		for _, m := range named.FindAllStringSubmatch(text, -1) {
			found++
			if problem := leadsNowhere(files, m[1], m[2]); problem != "" {
				t.Errorf("%s names %s: %s", at, m[0], problem)
			}
		}
	}
	if found < 50 {
		t.Errorf("pages are named only %d times", found)
	}
}

// named are pages with the path that they have in the repository, and not on another site.
var named = regexp.MustCompile(`(?:^|[^/\w.])(docs/[a-z0-9_/-]+\.md)(?:#([a-z0-9_-]+))?`)

// TestLinksRefuses: the rule itself finds what it is there for.
func TestLinksRefuses(t *testing.T) {
	const about = "# About `it`, or not\n\n## Same\n\n## Same\n\n```\n# no heading\n```\n\n[up](../README.md)\n"
	for name, tc := range map[string]struct {
		reason, text string
		want         []string
	}{
		"Good": {"files, directories, headings, also the second of one name, and other sites", "[a](docs/about.md), [b](docs), [c](docs/about.md#about-it-or-not), " +
			"[d](docs/about.md#same-1), [e](#here), [f](https://example.com/x#y)\n\n# Here\n", nil},
		"NoFile":    {"", "\n[a](docs/none.md)\n", []string{"README.md:2: docs/none.md is not there"}},
		"NoHeading": {"", "[a](docs/about.md#other)", []string{"README.md:1: docs/about.md has no heading #other"}},
		"NotInCode": {"what a block or code has is no heading", "[a](docs/about.md#no-heading)", []string{"README.md:1: docs/about.md has no heading #no-heading"}},
		"Own":       {"of the page itself", "[a](#none)", []string{"README.md:1: README.md has no heading #none"}},
		"Code":      {"what stands in code is no link", "`[a](none.md)`\n```\n[a](none.md)\n```\n", nil},
		"Lines":     {"a text of two lines is one link", "[a\nb](none.md)", []string{"README.md:2: none.md is not there"}},
		"Outside":   {"what is not in the repository is not there for a reader", "[a](../x.md)", []string{"README.md:1: ../x.md is not there"}},
		"Image":     {"a picture is a file", "![a](x.png)", []string{"README.md:1: x.png is not there"}},
		"Named":     {"a link that is written elsewhere", "[a][b]\n\n[b]: none.md", []string{"README.md:3: none.md is not there"}},
	} {
		t.Run(name, func(t *testing.T) {
			got := deadLinks(map[string]string{"README.md": tc.text, "docs/about.md": about})
			if !slices.Equal(got, tc.want) {
				t.Errorf("%s\ngot %q, want %q", tc.reason, got, tc.want)
			}
		})
	}
	tree := map[string]string{"README.md": "[a](a.md)", "a.md": "[b](sub)", "sub/b.md": "", "sub/c.txt": "", "c.md": "[a](a.md)"}
	if got := unreached(tree, "README.md"); !slices.Equal(got, []string{"c.md"}) {
		t.Errorf("not reached are %q, want c.md: whoever opens a directory sees its pages", got)
	}
}

// sources are the texts of the repository by their paths, without what tests plant and what
// is built. What is no text is there, and empty.
func sources(t *testing.T) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir("..", func(at string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		slash := strings.TrimPrefix(filepath.ToSlash(at), "../")
		if d.IsDir() {
			if slash == "bin" || d.Name() == "testdata" && slash != "e2e/testdata" || at != ".." && strings.HasPrefix(d.Name(), ".") {
				return filepath.SkipDir
			}
			return nil
		}
		files[slash] = ""
		if !slices.Contains([]string{".md", ".go", ".yaml", ".tpl", ".json", ".txt", ""}, filepath.Ext(at)) {
			return nil
		}
		text, err := os.ReadFile(at)
		files[slash] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func pagesOf(files map[string]string) []string {
	var pages []string
	for at := range files {
		if path.Ext(at) == ".md" {
			pages = append(pages, at)
		}
	}
	slices.Sort(pages)
	return pages
}

// link is one of a page to something in the repository.
type link struct {
	line         int
	to, fragment string
}

var (
	code      = regexp.MustCompile("`[^`\n]*`")
	inProse   = regexp.MustCompile(`\]\(([^()\s]+)\)`)
	elsewhere = regexp.MustCompile(`(?m)^\[[^\]]+\]: (\S+)$`)
	scheme    = regexp.MustCompile(`^[a-z]+:`)
	linked    = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
)

// prose is a page without its blocks of code, with as many lines.
func prose(text string) string {
	var b strings.Builder
	fenced := false
	for line := range strings.Lines(text) {
		mark := strings.HasPrefix(strings.TrimSpace(line), "```")
		if mark {
			fenced = !fenced
		}
		if fenced || mark {
			line = "\n"
		}
		b.WriteString(line)
	}
	return b.String()
}

// linksOf are the links of a page that stay in the repository.
func linksOf(text string) []link {
	text = prose(text)
	// As long as before, so that positions are those of the page.
	text = code.ReplaceAllStringFunc(text, func(s string) string { return strings.Repeat("x", len(s)) })
	var links []link
	for _, pattern := range []*regexp.Regexp{inProse, elsewhere} {
		for _, m := range pattern.FindAllStringSubmatchIndex(text, -1) {
			target := text[m[2]:m[3]]
			if scheme.MatchString(target) {
				continue
			}
			to, fragment, _ := strings.Cut(target, "#")
			links = append(links, link{1 + strings.Count(text[:m[2]], "\n"), to, fragment})
		}
	}
	return links
}

// leadsTo is the path in the repository that a link of a page means.
func (l link) leadsTo(page string) string {
	if l.to == "" {
		return page
	}
	return path.Join(path.Dir(page), l.to)
}

// headings are the fragments of a page's headings, as GitHub and most sites make them.
func headings(text string) map[string]bool {
	found, of := map[string]bool{}, map[string]int{}
	for line := range strings.Lines(prose(text)) {
		rank, title, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok || strings.Trim(rank, "#") != "" || rank == "" || !strings.HasPrefix(line, "#") {
			continue
		}
		title = linked.ReplaceAllString(title, "$1")
		slug := strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-', r == '_', unicode.IsLetter(r), unicode.IsNumber(r):
				return unicode.ToLower(r)
			}
			return -1
		}, strings.TrimSpace(title))
		if n := of[slug]; n > 0 {
			found[fmt.Sprintf("%s-%d", slug, n)] = true
		} else {
			found[slug] = true
		}
		of[slug]++
	}
	return found
}

// leadsNowhere says what is wrong with a path and a fragment; empty: nothing.
func leadsNowhere(files map[string]string, to, fragment string) string {
	text, ok := files[to]
	if !ok && !isDirectory(files, to) {
		return "is not there"
	}
	if fragment != "" && !headings(text)[fragment] {
		return "has no heading #" + fragment
	}
	return ""
}

func isDirectory(files map[string]string, at string) bool {
	for file := range files {
		if strings.HasPrefix(file, at+"/") {
			return true
		}
	}
	return false
}

// deadLinks are those of all pages that lead nowhere.
func deadLinks(files map[string]string) []string {
	var problems []string
	for _, page := range pagesOf(files) {
		for _, l := range linksOf(files[page]) {
			if problem := leadsNowhere(files, l.leadsTo(page), l.fragment); problem != "" {
				problems = append(problems, fmt.Sprintf("%s:%d: %s %s", page, l.line, l.leadsTo(page), problem))
			}
		}
	}
	return problems
}

// unreached are the pages to which no chain of links leads from the first. A link to a
// directory leads to all pages in it.
func unreached(files map[string]string, first string) []string {
	in := map[string][]string{}
	for _, page := range pagesOf(files) {
		in[page] = append(in[page], page)
		in[path.Dir(page)] = append(in[path.Dir(page)], page)
	}
	seen := map[string]bool{first: true}
	for next := []string{first}; len(next) > 0; {
		page := next[0]
		next = next[1:]
		for _, l := range linksOf(files[page]) {
			for _, to := range in[l.leadsTo(page)] {
				if !seen[to] {
					seen[to] = true
					next = append(next, to)
				}
			}
		}
	}
	var pages []string
	for _, page := range pagesOf(files) {
		if !seen[page] {
			pages = append(pages, page)
		}
	}
	return pages
}
