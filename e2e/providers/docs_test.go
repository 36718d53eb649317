package providers

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	kustypes "sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/yaml"

	"github.com/cascade-gitops/cascade/deploy"
	"github.com/cascade-gitops/cascade/docs/shown"
	"github.com/cascade-gitops/cascade/e2e/scenario"
)

// TestDocs: whatever YAML a page shows is admitted by an API server with the definitions and
// webhooks of Cluster API, of its providers, of Flux and of our own, under strict validation of
// fields. A part of a manifest is admitted in one that has what is missing; other YAML is
// read by those whom it is for. A page says of a part what it is a part of, in a comment above it.
// Commands of other programs that a page shows are held against these programs.
func TestDocs(t *testing.T) {
	scenario.Alongside(t)
	a := startAdmission(t)
	a.defineOurs(t)
	a.discover(t)
	root := scenario.Path(t)
	files, err := shown.Pages(root)
	if err != nil || len(files) < 80 {
		t.Fatalf("there are %d pages: %v", len(files), err)
	}
	known := newPrograms(t)
	blocks, commands := 0, 0
	for _, file := range files {
		page, err := filepath.Rel(root, file)
		if err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		found, _ := shown.Blocks(string(text))
		for _, b := range found {
			if isYAML(b) {
				blocks++
				for _, err := range a.shows(t, page, b) {
					t.Errorf("%s:%d: %v", page, b.Line, err)
				}
			}
		}
		for _, c := range shown.Commands(string(text), known.names...) {
			commands++
			if err := known.know(t, c); err != nil {
				t.Errorf("%s:%d: %s: %v", page, c.Line, strings.Join(c.Words, " "), err)
			}
		}
	}
	if blocks < 40 || commands < 60 {
		t.Errorf("pages have only %d blocks of YAML and %d commands: they are read in another way than they are written", blocks, commands)
	}
	t.Logf("%d blocks of YAML on %d pages, %d commands", blocks, len(files), commands)
	t.Run("Guarded", a.guardedDocs)
	t.Run("GuardedCommands", known.guarded)
}

// isYAML: a block is YAML if it says so. One without a language that is a mapping or a list
// should have said so.
func isYAML(b shown.Block) bool {
	if b.Language == "yaml" {
		return true
	}
	// A prompt; flags as --help shows them.
	if b.Language != "" || strings.HasPrefix(b.Text, "$ ") || strings.HasPrefix(strings.TrimSpace(b.Text), "--") {
		return false
	}
	var value any
	if err := yaml.Unmarshal([]byte(b.Text), &value); err != nil {
		return false
	}
	_, text := value.(string)
	return !text && value != nil
}

// What a part of a manifest lacks, by its kind.
var wholes = map[string]string{
	"Layer":       "apiVersion: cascade.dev/v1alpha1\nkind: Layer\nmetadata: {name: part, namespace: parts}\nspec: {clusterSelector: {}}",
	"Rollout":     "apiVersion: cascade.dev/v1alpha1\nkind: Rollout\nmetadata: {name: part, namespace: parts}\nspec: {moves: {layerRef: {name: part}}, waves: [{name: all}]}",
	"Child":       "apiVersion: cascade.dev/v1alpha1\nkind: Child\nmetadata: {name: part, namespace: parts}\nspec: {}",
	"HelmRelease": "apiVersion: helm.toolkit.fluxcd.io/v2\nkind: HelmRelease\nmetadata: {name: part, namespace: parts}\nspec: {interval: 1m, chartRef: {kind: OCIRepository, name: part}}",
	"Kustomization": "apiVersion: kustomize.toolkit.fluxcd.io/v1\nkind: Kustomization\nmetadata: {name: part, namespace: parts}\n" +
		"spec: {interval: 1m, prune: true, sourceRef: {kind: GitRepository, name: part}}",
}

var kindOfPart = regexp.MustCompile(`^part of an? ([A-Z][A-Za-z]+)$`)

// shows has what one block shows admitted, or read.
func (a *admission) shows(t *testing.T, page string, b shown.Block) []error {
	t.Helper()
	if b.Language != "yaml" {
		return []error{fmt.Errorf("this is YAML: put it into a fence that says so:\n%s", b.Text)}
	}
	chart, values := strings.CutPrefix(b.Mark, "values of ")
	if strings.HasPrefix(b.Text, "# values\n") {
		chart, values = filepath.Base(filepath.Dir(page)), true
	}
	kind := kindOfPart.FindStringSubmatch(b.Mark)
	switch {
	case values:
		return a.valuesOf(t, chart, b.Text)
	case kind != nil:
		return a.part(t, kind[1], b.Text)
	case b.Mark == "kustomization":
		return one(new(kustypes.Kustomization).Unmarshal([]byte(b.Text)))
	case b.Mark == "configuration of Prometheus":
		return one(prometheus(b.Text))
	case b.Mark == "steps of a workflow":
		return one(workflow(b.Text))
	case strings.Contains(b.Text, "kind: AWSIAMConfiguration"):
		a.manifests(t, page, []byte(b.Text))
		return nil
	}
	var errs []error
	for i, text := range strings.Split("\n"+b.Text, "\n---\n") {
		u := &unstructured.Unstructured{}
		if err := yaml.UnmarshalStrict([]byte(text), &u.Object); err != nil {
			errs = append(errs, fmt.Errorf("document %d: %w", i+1, err))
			continue
		}
		if u.GetKind() == "" || u.GetAPIVersion() == "" {
			errs = append(errs, fmt.Errorf("document %d is no manifest: say in a comment above the block what it is of", i+1))
			continue
		}
		errs = append(errs, a.admit(t, u)...)
	}
	return errs
}

func one(err error) []error {
	if err == nil {
		return nil
	}
	return []error{err}
}

// part admits a part of a manifest in a whole one.
func (a *admission) part(t *testing.T, kind, text string) []error {
	t.Helper()
	whole, there := wholes[kind]
	if !there {
		return []error{fmt.Errorf("a part of a %s is shown nowhere else: the test does not know the rest", kind)}
	}
	var object, part map[string]any
	if err := yaml.Unmarshal([]byte(whole), &object); err != nil {
		t.Fatal(err)
	}
	if err := yaml.UnmarshalStrict([]byte(text), &part); err != nil {
		return []error{err}
	}
	merge(object, part)
	return a.admit(t, &unstructured.Unstructured{Object: object})
}

func merge(into, from map[string]any) {
	for key, value := range from {
		below, ok := into[key].(map[string]any)
		if more, is := value.(map[string]any); is && ok {
			merge(below, more)
			continue
		}
		into[key] = value
	}
}

// valuesOf renders a chart with the values, and has that admitted. Those of the agent are
// read by its own program, too.
func (a *admission) valuesOf(t *testing.T, chart, text string) []error {
	t.Helper()
	var values map[string]any
	if err := yaml.UnmarshalStrict([]byte(text), &values); err != nil {
		return []error{err}
	}
	if _, err := os.Stat(filepath.Join(a.charts, chart)); err != nil {
		return []error{fmt.Errorf("cannot find chart %s", chart)}
	}
	namespace := "parts"
	if chart == "cascade" {
		if _, err := deploy.Parse([]byte(text)); err != nil {
			return []error{err}
		}
		if values["image"] == nil {
			values["image"] = "registry.example/cascade:v1.2.3"
		}
		namespace = "cascade-system"
	}
	if err := a.inNamespace(t.Context(), namespace); err != nil {
		return []error{err}
	}
	rendered, err := a.tryRender(t, chart, namespace, values)
	if err != nil {
		return []error{err}
	}
	var errs []error
	for _, u := range rendered {
		if _, known := a.resources[u.GroupVersionKind().GroupKind()]; !known {
			errs = append(errs, fmt.Errorf("nobody defines %s %s", u.GetAPIVersion(), u.GetKind()))
		} else if _, err := a.apply(t.Context(), u, metav1.DryRunAll); err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}

// discover learns the kinds of Kubernetes.
func (a *admission) discover(t *testing.T) {
	t.Helper()
	client, err := discovery.NewDiscoveryClientForConfig(a.config)
	if err != nil {
		t.Fatal(err)
	}
	lists, err := client.ServerPreferredResources()
	if err != nil {
		t.Fatal(err)
	}
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range list.APIResources {
			kind := schema.GroupKind{Group: gv.Group, Kind: r.Kind}
			if _, known := a.resources[kind]; !known {
				a.resources[kind] = gv.WithResource(r.Name)
			}
		}
	}
}

// prometheus reads a configuration, as far as pages show one.
func prometheus(text string) error {
	type authorization struct {
		Type            string `json:"type"`
		Credentials     string `json:"credentials"`
		CredentialsFile string `json:"credentials_file"`
	}
	type tls struct {
		CAFile             string `json:"ca_file"`
		CertFile           string `json:"cert_file"`
		KeyFile            string `json:"key_file"`
		ServerName         string `json:"server_name"`
		InsecureSkipVerify bool   `json:"insecure_skip_verify"`
	}
	type client struct {
		Authorization authorization `json:"authorization"`
		TLSConfig     tls           `json:"tls_config"`
	}
	type relabel struct {
		SourceLabels []string `json:"source_labels"`
		Separator    string   `json:"separator"`
		TargetLabel  string   `json:"target_label"`
		Regex        string   `json:"regex"`
		Modulus      uint64   `json:"modulus"`
		Replacement  string   `json:"replacement"`
		Action       string   `json:"action"`
	}
	type static struct {
		Targets []string          `json:"targets"`
		Labels  map[string]string `json:"labels"`
	}
	var config struct {
		Global struct {
			ScrapeInterval     string            `json:"scrape_interval"`
			ScrapeTimeout      string            `json:"scrape_timeout"`
			EvaluationInterval string            `json:"evaluation_interval"`
			ExternalLabels     map[string]string `json:"external_labels"`
		} `json:"global"`
		RuleFiles     []string `json:"rule_files"`
		ScrapeConfigs []struct {
			client
			JobName        string `json:"job_name"`
			Scheme         string `json:"scheme"`
			MetricsPath    string `json:"metrics_path"`
			ScrapeInterval string `json:"scrape_interval"`
			ScrapeTimeout  string `json:"scrape_timeout"`
			HonorLabels    *bool  `json:"honor_labels"`
			BodySizeLimit  string `json:"body_size_limit"`
			SampleLimit    uint   `json:"sample_limit"`
			LabelLimit     uint   `json:"label_limit"`
			HTTPSDConfigs  []struct {
				client
				URL             string `json:"url"`
				RefreshInterval string `json:"refresh_interval"`
			} `json:"http_sd_configs"`
			StaticConfigs        []static  `json:"static_configs"`
			RelabelConfigs       []relabel `json:"relabel_configs"`
			MetricRelabelConfigs []relabel `json:"metric_relabel_configs"`
		} `json:"scrape_configs"`
	}
	if err := yaml.UnmarshalStrict([]byte(text), &config); err != nil {
		return err
	}
	jobs := map[string]bool{}
	for _, s := range config.ScrapeConfigs {
		switch {
		case s.JobName == "" || jobs[s.JobName]:
			return fmt.Errorf("a job needs a name of its own, not %q", s.JobName)
		case len(s.HTTPSDConfigs)+len(s.StaticConfigs) == 0:
			return fmt.Errorf("job %s finds no targets", s.JobName)
		case slices.ContainsFunc(s.MetricRelabelConfigs, func(r relabel) bool { return r.Action == "" && r.TargetLabel == "" }):
			return fmt.Errorf("job %s replaces no label", s.JobName)
		}
		jobs[s.JobName] = true
	}
	return nil
}

// workflow reads steps of a workflow of GitHub.
func workflow(text string) error {
	var steps []struct {
		Name string            `json:"name"`
		ID   string            `json:"id"`
		If   string            `json:"if"`
		Uses string            `json:"uses"`
		With map[string]any    `json:"with"`
		Env  map[string]string `json:"env"`
		Run  string            `json:"run"`
	}
	if err := yaml.UnmarshalStrict([]byte(text), &steps); err != nil {
		return err
	}
	for i, s := range steps {
		if (s.Run == "") == (s.Uses == "") {
			return fmt.Errorf("step %d either runs or uses something", i+1)
		}
	}
	return nil
}

// guardedDocs: the rule itself finds what it is there for.
func (a *admission) guardedDocs(t *testing.T) {
	for name, c := range map[string]struct {
		reason, mark, text, want string
	}{
		"Unknown":       {"what is no manifest has to say what it is", "", "a: b", "is no manifest"},
		"Mark":          {"in words that the test knows", "values", "a: b", "is no manifest"},
		"Part":          {"a part is validated in a whole", "part of a Layer", "spec: {agent: {replica: 3}}", "replica"},
		"Rule":          {"by the rules of the API server", "part of a Rollout", "spec: {sourceRef: {kind: GitRepository, name: a}}", "sourceRef must be set"},
		"OtherPart":     {"", "part of a Pod", "spec: {}", "does not know the rest"},
		"Second":        {"each document", "", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, namespace: parts}\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, namespace: parts}\ndatas: {}", "datas"},
		"Twice":         {"a key that is there twice", "", "apiVersion: v1\nkind: ConfigMap\nkind: ConfigMap\nmetadata: {name: a, namespace: parts}", "already"},
		"Values":        {"values of the agent", "values of cascade", "lockdown: {serviceAcount: a}", "serviceAcount"},
		"ClusterValues": {"of a cluster", "values of cluster-aws", "version: v1.34.2\nregoin: a", "regoin"},
		"Kustomization": {"", "kustomization", "replica: []", "replica"},
		"Prometheus":    {"", "configuration of Prometheus", "scrape_configs: [{job_name: a, http_sd_config: []}]", "http_sd_config"},
		"Workflow":      {"", "steps of a workflow", "- {run: a, use: b}", "use"},
	} {
		t.Run(name, func(t *testing.T) {
			err := errors.Join(a.shows(t, "page.md", shown.Block{Language: "yaml", Mark: c.mark, Text: c.text})...)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: it is admitted, or refused for something else: %v", c.reason, err)
			}
		})
	}
	if b := (shown.Block{Text: "spec: {a: b}\n"}); !isYAML(b) || len(a.shows(t, "page.md", b)) == 0 {
		t.Error("YAML without a fence is not seen")
	}
	for _, text := range []string{"cascade tree\n", "$ cascade tree\na: b\n", "a  the first\nb  the second\n", "--a string   b: c\n"} {
		if isYAML(shown.Block{Text: text}) {
			t.Errorf("%q counts as YAML", text)
		}
	}
}

// programs are command lines of others, with what their help says.
type programs struct {
	names []string
	bin   string
	// global are flags that all verbs of one have.
	global map[string]string
	helps  map[string]string
}

func newPrograms(t *testing.T) *programs {
	t.Helper()
	p := &programs{bin: scenario.Path(t, "bin"), global: map[string]string{}, helps: map[string]string{}}
	for name, options := range map[string][]string{"kubectl": {"options"}, "flux": {"--help"}, "helm": {"--help"}, "clusterctl": {"--help"}} {
		p.global[name] = p.help(t, append([]string{name}, options...))
	}
	p.names = slices.Sorted(maps.Keys(p.global))
	return p
}

// help runs what prints help, once.
func (p *programs) help(t *testing.T, words []string) string {
	t.Helper()
	key := strings.Join(words, " ")
	if text, asked := p.helps[key]; asked {
		return text
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join(p.bin, words[0]), words[1:]...)
	home := t.TempDir()
	cmd.Env = []string{"HOME=" + home, "XDG_CONFIG_HOME=" + home, "CLUSTERCTL_DISABLE_VERSIONCHECK=true", "KUBECONFIG=" + filepath.Join(home, "none")}
	out, err := cmd.CombinedOutput()
	if _, failed := errors.AsType[*exec.ExitError](err); err != nil && !failed {
		t.Fatalf("cannot run %s (make build-e2e): %v", key, err)
	}
	p.helps[key] = string(out)
	return string(out)
}

// plugins of kubectl, one of which is our own program: cmd/cascade holds its verbs against it.
var plugins = []string{"cascade", "krew"}

var usage = regexp.MustCompile(`(?m)^Usage:\s+(.*)$`)

// know says what a program does not have of a command: its verb, or one of its flags.
func (p *programs) know(t *testing.T, c shown.Command) error {
	t.Helper()
	program, rest := c.Words[0], c.Words[1:]
	var verbs, flags []string
	own := false
	for i := 0; i < len(rest); i++ {
		switch word := rest[i]; {
		case word == "--":
			i = len(rest)
		case word == "-n", word == "--namespace", word == "--kubeconfig", word == "--context":
			flags = append(flags, word)
			i++
		case strings.HasPrefix(word, "-") && word != "-":
			name, _, _ := strings.Cut(word, "=")
			flags, own = append(flags, name), true
		case !own:
			verbs = append(verbs, word)
		}
	}
	if len(verbs) == 0 {
		if slices.Contains(flags, "--help") || slices.Contains(flags, "--version") {
			return nil
		}
		return errors.New("it has no verb")
	}
	if verbs[0] == "..." || program == "kubectl" && slices.Contains(plugins, verbs[0]) {
		return nil
	}
	help := p.help(t, append(append([]string{program}, verbs...), "--help"))
	m := usage.FindStringSubmatch(help)
	if m == nil {
		return fmt.Errorf("there is no verb %s: %s", verbs[0], help)
	}
	path := strings.Fields(m[1])
	if len(path) < 2 || path[0] != program || path[1] != verbs[0] {
		return fmt.Errorf("there is no verb %s", verbs[0])
	}
	below := len(path) > 2 && path[2] == "[command]" || strings.Contains(help, "\nAvailable Commands:\n")
	if below && len(verbs) > 1 && !strings.Contains(m[1], " "+verbs[1]) {
		return fmt.Errorf("there is no verb %s %s", verbs[0], verbs[1])
	}
	for _, flag := range flags {
		if !regexp.MustCompile(`(^|[\s,])` + regexp.QuoteMeta(flag) + `([\s,=]|$)`).MatchString(help + p.global[program]) {
			return fmt.Errorf("there is no flag %s", flag)
		}
	}
	return nil
}

// guarded: the rule itself finds what it is there for.
func (p *programs) guarded(t *testing.T) {
	for line, want := range map[string]string{
		"kubectl get pods -n a -o wide":                           "",
		"kubectl gett pods":                                       "no verb gett",
		"kubectl -n a get pods --sinze":                           "no flag --sinze",
		"kubectl -n a create secret generic b --from-literal=c=d": "",
		"kubectl -n a create secrt generic b":                     "no verb create secrt",
		"flux get kustomizations --watch":                         "",
		"flux get kustomisation":                                  "no verb get kustomisation",
		"flux reconcile source git a --withsource":                "no flag --withsource",
		"clusterctl move --to-dir a":                              "no flag --to-dir",
		"clusterctl mov":                                          "no verb mov",
		"helm install a b --sett":                                 "no flag --sett",
	} {
		err := p.know(t, shown.Command{Words: strings.Fields(line), Whole: true})
		if got := fmt.Sprint(err); want == "" && err != nil || !strings.Contains(got, want) {
			t.Errorf("%s: got %v, want %q", line, err, want)
		}
	}
}
