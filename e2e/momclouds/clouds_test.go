package momclouds

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/e2e/scenario"
	"github.com/cascade-gitops/cascade/e2e/stage"
)

func TestMain(m *testing.M) { scenario.Main(m) }

const (
	tenant       = "11111111-2222-3333-4444-555555555555"
	subscription = "66666666-7777-8888-9999-000000000000"
	application  = "aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee"
)

// TestClouds runs the managers for AWS and Azure under cascade-mom: their webhooks answer, a
// cluster of each is admitted and worked on, and what the clouds are asked first is right.
func TestClouds(t *testing.T) {
	d := newStand(t)
	t.Run("Started", d.started)
	t.Run("Webhooks", d.webhooks)
	t.Run("AWS", d.aws)
	t.Run("Azure", d.azure)
	t.Run("Nowhere", func(t *testing.T) {
		for _, host := range d.recorder.Hosts() {
			if host != azureLogin && host != "management.azure.com" && !strings.HasSuffix(host, ".amazonaws.com") {
				t.Errorf("%s was asked, which is no cloud of a cluster", host)
			}
		}
	})
}

type stand struct {
	*stage.Stage
	recorder *Recorder
	tier     *stage.Tier
	client   client.Client
	output   *output
}

type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(text []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(text)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

func newStand(t *testing.T) *stand {
	t.Helper()
	run := scenario.RunDir(t)
	s, err := stage.Open(t.Context(), stage.Options{Run: run, Bin: []string{scenario.Path(t, "bin")}, Log: t.Logf})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("cannot clean up: %v", err)
		}
	})
	recorder, err := NewRecorder()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = recorder.Close() }) // what it has is read
	d := &stand{Stage: s, recorder: recorder, output: &output{}}
	if err := s.Git.Create(t.Context(), "masters"); err != nil {
		t.Fatal(err)
	}
	_, err = s.Git.Commit(t.Context(), "masters", "main", "Begin", func(tree string) error {
		return os.CopyFS(filepath.Join(tree, "mom"), os.DirFS("testdata"))
	})
	if err != nil {
		t.Fatal(err)
	}
	ca := filepath.Join(run, "ca.crt")
	if err := os.WriteFile(ca, recorder.CA(), 0o644); err != nil {
		t.Fatal(err)
	}
	d.start(t, run, ca)
	return d
}

// start brings cascade-mom up, and waits until it runs.
func (d *stand) start(t *testing.T, run, ca string) {
	t.Helper()
	program, err := d.Program("cascade-mom")
	if err != nil {
		t.Fatal(err)
	}
	key, hosts := filepath.Join(run, "deploy-key"), filepath.Join(run, "known-hosts")
	deployKey, err := d.Git.DeployKey("masters")
	if err != nil {
		t.Fatal(err)
	}
	for file, text := range map[string]string{key: string(deployKey), hosts: d.Git.KnownHosts()} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	folder := filepath.Join(run, "mom")
	cmd := exec.Command(program, "up", "--dir", folder, "--repo", "ssh://git@"+d.Git.SSHAddress()+"/masters.git", "--path", "mom",
		"--private-key-file", key, "--known-hosts-file", hosts, "--interval", "2s", "--image", stage.Image, "--first-sync", "create")
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + run,
		// All that is not on loopback goes through the recorder, which is believed.
		"HTTPS_PROXY=" + d.recorder.URL(), "SSL_CERT_FILE=" + ca,
		"AWS_REGION=eu-west-1", "AWS_ACCESS_KEY_ID=AKIAEXAMPLE", "AWS_SECRET_ACCESS_KEY=of-the-recorder", "AWS_EC2_METADATA_DISABLED=true",
	}
	cmd.Stdout, cmd.Stderr = d.output, d.output
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended
		if err := <-ended; err != nil {
			t.Errorf("cascade-mom ended with %v", err)
		}
		if t.Failed() {
			t.Logf("it printed:\n%s\nhosts that were asked: %v", d.output, d.recorder.Hosts())
			logs, err := filepath.Glob(filepath.Join(folder, "logs", "*.log"))
			if err != nil {
				t.Fatal(err)
			}
			for _, log := range logs {
				if text, err := os.ReadFile(log); err == nil {
					t.Logf("%s ends with:\n%s", log, text[max(0, len(text)-4000):])
				}
			}
		}
	})
	scenario.Eventually(t, scenario.BringUp, "the agent is up", func(context.Context) error {
		select {
		case err := <-ended:
			ended <- err
			t.Fatalf("it ended: %v", err)
		default:
		}
		if !strings.Contains(d.output.String(), "the agent is up") {
			return fmt.Errorf("it is not")
		}
		return nil
	})
	d.tier = d.Existing("mom", filepath.Join(folder, "controlplane"))
	if d.client, err = d.tier.Client(); err != nil {
		t.Fatal(err)
	}
}

// started: all managers run, and none ended meanwhile.
func (d *stand) started(t *testing.T) {
	if text := d.output.String(); strings.Contains(text, "is started again") {
		t.Errorf("it printed\n%s", text)
	}
	t.Logf("%s", d.output)
}

// webhooks: what a provider does not admit is refused in its own words, and what it does gets
// its defaults.
func (d *stand) webhooks(t *testing.T) {
	for name, tc := range map[string]struct{ reason, manifest, want string }{
		"Core": {"Cluster API's own",
			`{apiVersion: cluster.x-k8s.io/v1beta2, kind: Cluster, metadata: {name: bad, namespace: default}, spec: {clusterNetwork: {pods: {cidrBlocks: [none]}}}}`, "none"},
		"ControlPlane": {"that of kubeadm",
			`{apiVersion: controlplane.cluster.x-k8s.io/v1beta2, kind: KubeadmControlPlane, metadata: {name: bad, namespace: default}, spec: {replicas: 0, version: v1.34.0, ` +
				`machineTemplate: {spec: {infrastructureRef: {apiGroup: infrastructure.cluster.x-k8s.io, kind: AWSMachineTemplate, name: bad}}}}}`, "replicas"},
		"AWS": {"the provider for AWS",
			`{apiVersion: infrastructure.cluster.x-k8s.io/v1beta2, kind: AWSCluster, metadata: {name: bad, namespace: default}, spec: {region: eu-west-1, sshKeyName: "a\nb"}}`, "sshKeyName"},
		"Azure": {"the provider for Azure",
			`{apiVersion: infrastructure.cluster.x-k8s.io/v1beta1, kind: AzureCluster, metadata: {name: "Bad.Name", namespace: default}, spec: {location: westeurope}}`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			err := stage.Apply(t.Context(), d.client, tc.manifest)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%s: it says %v, want %q", tc.reason, err, tc.want)
			}
		})
	}
	identity := stage.Object("infrastructure.cluster.x-k8s.io/v1beta2", "AWSCluster")
	scenario.Eventually(t, scenario.Converge, "the AWSCluster is there with its defaults", func(ctx context.Context) error {
		if err := d.client.Get(ctx, client.ObjectKey{Namespace: "default", Name: "amazon"}, identity); err != nil {
			return err
		}
		name, _, _ := unstructured.NestedString(identity.Object, "spec", "identityRef", "name")
		if name != "default" {
			return fmt.Errorf("its identity is %q", name)
		}
		return nil
	})
}

// aws: the provider asks EC2 in the region of the cluster, signed with the credentials of
// cascade-mom's environment.
func (d *stand) aws(t *testing.T) {
	scenario.Eventually(t, scenario.Converge, "EC2 is asked", func(context.Context) error {
		for _, a := range d.recorder.Asked(".amazonaws.com") {
			if a.Host == "ec2.eu-west-1.amazonaws.com" && strings.Contains(a.Authorization, "Credential=AKIAEXAMPLE/") && strings.Contains(a.Authorization, "/eu-west-1/ec2/") {
				t.Logf("%s %s %s: Action=%s", a.Method, a.Host, a.Path, a.Form.Get("Action"))
				if action := a.Form.Get("Action"); !strings.Contains(action, "Vpc") {
					return fmt.Errorf("the first call is %s", action)
				}
				return nil
			}
		}
		return fmt.Errorf("asked were %v", d.recorder.Hosts())
	})
	// That it is refused, the provider says of the cluster.
	d.says(t, "infrastructure.cluster.x-k8s.io/v1beta2", "AWSCluster", "amazon", "not authorized")
}

// azure: Azure Service Operator logs in as the identity of the cluster, and asks for its
// resource group.
func (d *stand) azure(t *testing.T) {
	scenario.Eventually(t, scenario.Converge, "Azure is asked for the resource group", func(context.Context) error {
		for _, a := range d.recorder.Asked("management.azure.com") {
			if a.Method == "PUT" && strings.EqualFold(a.Path, "/subscriptions/"+subscription+"/resourceGroups/blue") {
				if a.Authorization != "Bearer "+token || !strings.Contains(a.Body, "westeurope") {
					return fmt.Errorf("it is asked with %q: %s", a.Authorization, a.Body)
				}
				return nil
			}
		}
		return fmt.Errorf("asked were %v", d.recorder.Hosts())
	})
	for _, a := range d.recorder.Asked(azureLogin) {
		if a.Form.Get("client_id") != "" && (a.Form.Get("client_id") != application || !strings.HasPrefix(a.Path, "/"+tenant+"/")) {
			t.Errorf("who logs in is %s at %s", a.Form.Get("client_id"), a.Path)
		}
	}
	d.says(t, "resources.azure.com/v1api20200601", "ResourceGroup", "blue", "AuthorizationFailed")
}

// says waits until a condition of an object has a text in its message or reason.
func (d *stand) says(t *testing.T, apiVersion, kind, name, want string) {
	t.Helper()
	scenario.Eventually(t, scenario.Converge, kind+" "+name+" says why it is not ready", func(ctx context.Context) error {
		u := stage.Object(apiVersion, kind)
		if err := d.client.Get(ctx, client.ObjectKey{Namespace: metav1.NamespaceDefault, Name: name}, u); err != nil {
			return err
		}
		conditions, _, err := unstructured.NestedSlice(u.Object, "status", "conditions")
		if err != nil {
			return err
		}
		text := fmt.Sprint(conditions)
		if !strings.Contains(text, want) {
			return fmt.Errorf("conditions are %s", text)
		}
		return nil
	})
}
