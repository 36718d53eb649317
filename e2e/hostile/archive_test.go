package hostile

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/cascade-gitops/cascade/e2e/origins"
)

// file of an archive.
func file(name, text string) origins.Entry {
	return origins.Entry{Header: tar.Header{Name: name, Mode: 0o644, Typeflag: tar.TypeReg}, Content: []byte(text)}
}

// linked is a link in an archive.
func linked(name string, kind byte, target string) origins.Entry {
	return origins.Entry{Header: tar.Header{Name: name, Linkname: target, Typeflag: kind, Mode: 0o777}}
}

// tarred is an archive that is hostile.
type tarred struct {
	name, reason string
	archive      []byte
}

func zipped(data []byte) []byte {
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, _ = w.Write(data) // to memory
	_ = w.Close()
	return out.Bytes()
}

func unzipped(data []byte) []byte {
	r, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil
	}
	var out bytes.Buffer
	_, _ = out.ReadFrom(r) // of what was packed here
	return out.Bytes()
}

// rawHeader is one header of an archive, whose fields are what they are.
func rawHeader(name, size string, kind byte) []byte {
	h := make([]byte, 512)
	copy(h, name)
	copy(h[100:], "0000644\x00")
	copy(h[124:], size)
	copy(h[136:], "00000000000\x00")
	h[156] = kind
	copy(h[257:], "ustar\x0000")
	copy(h[148:], "        ")
	sum := 0
	for _, b := range h {
		sum += int(b)
	}
	copy(h[148:], fmt.Sprintf("%06o\x00 ", sum))
	return h
}

// tarballs are hostile whoever unpacks them. root is the directory that everything has
// to be in, and good are files with which it would be all right.
func tarballs(o *outside, root string, good ...origins.Entry) []tarred {
	of := func(more ...origins.Entry) []byte {
		return origins.TarballOf(append(append([]origins.Entry{}, good...), more...)...)
	}
	flat := unzipped(of())
	many := bytes.Repeat(zipped(bytes.Repeat(rawHeader(root+"n", "00000000000\x00", '0'), 2000)), 350)
	var deep []origins.Entry
	for i := range 8 {
		deep = append(deep, file(root+fmt.Sprint("a", i, "/")+strings.Repeat("x/", 400_000)+"f", ""))
	}
	begin := zipped(flat[:len(flat)-1024])
	// An archive of gzip goes on with another one, so that little is packed often.
	huge := slices.Concat(begin, zipped(rawHeader(root+"huge.yaml", "10000000000\x00", '0')), bytes.Repeat(zipped(make([]byte, 1<<20)), 1024), zipped(make([]byte, 1024)))
	return []tarred{
		{"above", "a name that leads up", of(file(root+"../../../../.."+o.dir+"/was-here", "x"))},
		{"absolute", "a name that begins at the root", of(file(o.dir+"/was-here", "x"))},
		{"bomb", "a gigabyte of zeros", huge},
		{"names", "seven hundred thousand files of one name, without content", slices.Concat(begin, many, zipped(make([]byte, 1024)))},
		{"directories", "three million directories without headers, in a few KB", of(deep...)},
		{"noise", "no archive", []byte("this is no archive")},
		{"nothing", "no byte", nil},
		{"cut", "an archive that is cut off", of()[:len(of())/2]},
		{"gzip-header", "the header of gzip, and nothing", of()[:10]},
		{"gzip-sum", "a sum of gzip that is wrong", append(bytes.Clone(of()[:len(of())-8]), 1, 2, 3, 4, 5, 6, 7, 8)},
		{"gzip-twice", "an archive in an archive in an archive", zipped(zipped(of()))},
		{"size", "a file that says it has eight gigabytes", zipped(append(bytes.Clone(flat[:len(flat)-1024]), rawHeader(root+"b.yaml", "77777777777\x00", '0')...))},
		{"size-negative", "a file of a negative size", zipped(append(bytes.Clone(flat[:len(flat)-1024]), rawHeader(root+"b.yaml", "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", '0')...))},
		{"size-noise", "a size that is no number", zipped(append(bytes.Clone(flat[:len(flat)-1024]), rawHeader(root+"b.yaml", "zzzzzzzzzzz\x00", '0')...))},
		{"header-sum", "a header whose sum is wrong", zipped(append(bytes.Clone(flat[:len(flat)-1024]), bytes.Repeat([]byte{'x'}, 1024)...))},
		{"long-name", "a name of a gigabyte", zipped(append(append(bytes.Clone(flat[:len(flat)-1024]), rawHeader("././@LongLink", "07777777777\x00", 'L')...), bytes.Repeat([]byte("x"), 4<<20)...))},
		{"pax", "a record that says it has two gigabytes", zipped(append(append(bytes.Clone(flat[:len(flat)-1024]), rawHeader("PaxHeaders.0/b", "00000010000\x00", 'x')...), []byte("2000000000 path=x\n"+strings.Repeat("\x00", 4096-18))...))},
		{"sparse", "a file with a terabyte of holes", zipped(sparse(flat[:len(flat)-1024], root+"b.yaml"))},
	}
}

// sparse is an archive with a file of GNU's sparse format, which says that it has more
// than there is.
func sparse(begin []byte, name string) []byte {
	record := func(key, value string) string {
		n := len(key) + len(value) + 3
		for {
			line := fmt.Sprintf("%d %s=%s\n", n, key, value)
			if len(line) == n {
				return line
			}
			n = len(line)
		}
	}
	pax := record("GNU.sparse.major", "1") + record("GNU.sparse.minor", "0") + record("GNU.sparse.name", name) + record("GNU.sparse.realsize", "1099511627776")
	body := pax + strings.Repeat("\x00", (512-len(pax)%512)%512)
	out := append(bytes.Clone(begin), rawHeader("PaxHeaders.0/s", fmt.Sprintf("%011o\x00", len(pax)), 'x')...)
	out = append(out, body...)
	holes := "1\n1099511627775\n1\n"
	content := holes + strings.Repeat("\x00", 512-len(holes)) + "x" + strings.Repeat("\x00", 511)
	out = append(out, rawHeader("GNUSparseFile.0/s", fmt.Sprintf("%011o\x00", 513), '0')...)
	return append(append(out, content...), make([]byte, 1024)...)
}

// artifactOf is a Kustomization of an OCIRepository whose layer is an archive. Where the
// artifact can be fetched, it is of no use to who builds it.
func artifactOf(name, reason string, archive []byte) fixture {
	f := ociOf(name, reason, registryOf(image(archive)), "")
	f.objects = strings.ReplaceAll(f.objects, "name: bad", "name: source") + "---\n" + "apiVersion: kustomize.toolkit.fluxcd.io/v1\nkind: Kustomization\nmetadata: {name: bad, namespace: $ns}\n" +
		"spec: {sourceRef: {kind: OCIRepository, name: source}, path: ./, targetNamespace: $ns, prune: true, interval: 10m, retryInterval: 1m}\n"
	f.kind, f.tells = "Kustomization", []string{"BuildFailed"}
	return f
}

// archives are hostile archives: artifacts of registries, and charts.
func archives(o *outside) []fixture {
	var all []fixture
	for _, a := range tarballs(o, "", file("a.yaml", configMap("a"))) {
		f := ociOf("oci-"+a.name, a.reason, registryOf(image(a.archive)), "")
		if a.name == "bomb" {
			// A file may be there that nobody can use: the one that reads it is told.
			f = artifactOf("oci-"+a.name, a.reason, a.archive)
		}
		all = append(all, f)
	}
	for _, a := range tarballs(o, "app/", file("app/Chart.yaml", origins.Chart{Name: "app", Version: "1.0.0"}.Metadata()), file("app/templates/a.yaml", configMap("a"))) {
		all = append(all, archiveOf("chart-"+a.name, a.reason+", in a chart", a.archive))
	}
	chart := origins.Chart{Name: "app", Version: "1.0.0"}
	kustomization := file("kustomization.yaml", "resources: [a.yaml]\n")
	for name, tt := range inOrder(map[string]struct {
		reason string
		link   origins.Entry
	}{
		"link":          {"a link that leads out", linked("a.yaml", tar.TypeSymlink, o.file())},
		"link-above":    {"a link that leads out by dots", linked("a.yaml", tar.TypeSymlink, o.above(o.file()))},
		"hard-link":     {"a hard link to a file of the machine", linked("a.yaml", tar.TypeLink, o.file())},
		"directory":     {"a directory where a file is wanted", origins.Entry{Header: tar.Header{Name: "a.yaml/", Typeflag: tar.TypeDir, Mode: 0o755}}},
		"link-to-proc":  {"a link to the memory of the agent", linked("a.yaml", tar.TypeSymlink, "/proc/self/mem")},
		"link-itself":   {"a link to itself", linked("a.yaml", tar.TypeSymlink, "a.yaml")},
		"file-and-path": {"a file below a file", file("a.yaml/b", "x")},
	}) {
		all = append(all, artifactOf("kind-"+name, tt.reason, origins.TarballOf(kustomization, tt.link)))
	}
	return append(all,
		ociOf("kind-device", "a device", registryOf(image(origins.TarballOf(kustomization, linked("a.yaml", tar.TypeBlock, "")))), ""),
		ociOf("kind-zero", "a device that has no end", registryOf(image(origins.TarballOf(kustomization, origins.Entry{Header: tar.Header{Name: "a.yaml", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 5}}))), ""),
		ociOf("kind-pipe", "a pipe, which blocks who reads it", registryOf(image(origins.TarballOf(kustomization, linked("a.yaml", tar.TypeFifo, "")))), ""),
		artifactOf("large-file", "a file of 40 MiB", origins.TarballOf(file("a.yaml", strings.Repeat("a: b\n", 8<<20)))),
		archiveOf("chart-without", "no Chart.yaml", origins.TarballOf(file("app/values.yaml", "{}\n"))),
		archiveOf("chart-dots", "a chart whose directory is the one above", origins.TarballOf(file("../Chart.yaml", chart.Metadata()))),
		archiveOf("chart-file-large", "a file of 6 MiB, which is more than one may have", origins.TarballOf(file("app/Chart.yaml", chart.Metadata()), file("app/big", noiseOf(6<<20)))),
		archiveOf("chart-large", "a chart of 11 MiB", origins.TarballOf(file("app/Chart.yaml", chart.Metadata()), file("app/a", noiseOf(4<<20)), file("app/b", noiseOf(4<<20)), file("app/c", noiseOf(4<<20)))),
		archiveOf("chart-values", "values of 100 MiB, in some KB", origins.TarballOf(file("app/Chart.yaml", chart.Metadata()), file("app/values.yaml", strings.Repeat("a: b\n", 20<<20)))),
		archiveOf("chart-named-above", "a chart that is named ..", origins.TarballOf(file("app/Chart.yaml", "apiVersion: v2\nname: ../../was-here\nversion: 1.0.0\n"))),
		archiveOf("chart-charts", "two thousand charts within each other", origins.TarballOf(subcharts(2000)...)),
	)
}

// subcharts are charts, each of which is in the one before.
func subcharts(n int) []origins.Entry {
	var all []origins.Entry
	dir := "app/"
	for i := range n {
		name := "app"
		if i > 0 {
			name = "c"
		}
		all = append(all, file(dir+"Chart.yaml", origins.Chart{Name: name, Version: "1.0.0"}.Metadata()))
		dir += "charts/c/"
	}
	return append(all, file("app/templates/a.yaml", "{{ fail \"it was rendered\" }}"))
}

// noiseOf is text that does not compress.
func noiseOf(n int) string {
	out := make([]byte, n)
	x := uint32(2463534242)
	for i := range out {
		x ^= x << 13
		x ^= x >> 17
		x ^= x << 5
		out[i] = byte(33 + x%90)
	}
	return string(out)
}

// archiveOf is a HelmRelease of a chart that a Helm repository serves.
func archiveOf(name, reason string, archive []byte) fixture {
	return fixture{
		name: name, reason: reason, kind: "HelmRelease", tells: []string{"SourceNotReady", "ArtifactFailed", "InstallFailed"},
		serve: paths(serveChart(archive), map[string]http.HandlerFunc{"/index.yaml": says("application/yaml", "apiVersion: v1\nentries:\n  app:\n  - {apiVersion: v2, name: app, version: 1.0.0, urls: [app-1.0.0.tgz]}\n")}),
		objects: manifests("apiVersion: source.toolkit.fluxcd.io/v1\nkind: HelmRepository\nmetadata: {name: charts, namespace: $ns}\nspec: {url: 'http://$server', interval: 1m, timeout: 8s}\n",
			"apiVersion: helm.toolkit.fluxcd.io/v2\nkind: HelmRelease\nmetadata: {name: bad, namespace: $ns}\nspec: {interval: 10m, timeout: 20s, chart: {spec: {chart: app, version: 1.0.0, interval: 1m, sourceRef: {kind: HelmRepository, name: charts}}}}\n"),
	}
}

func serveChart(archive []byte) http.HandlerFunc {
	return says("application/gzip", string(archive))
}
