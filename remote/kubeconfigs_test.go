package remote

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/cascade-gitops/cascade/api/clusterapi"
	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/syncer/apply"
)

// TestKubeconfigsListed: what leads to the children that were taken over is read by one list, and used once, in the version
// that is watched, for a moment.
func TestKubeconfigsListed(t *testing.T) {
	gets, lists := 0, 0
	builder := fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).WithInterceptorFuncs(interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			gets++
			return c.Get(ctx, key, o, opts...)
		},
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			lists++
			return c.List(ctx, list, opts...)
		},
	})
	for _, name := range []string{"a", "b", "c", "foreign"} {
		builder.WithObjects(&corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: clusterapi.KubeconfigSecret(name), UID: types.UID(name), Labels: map[string]string{clusterapi.ClusterNameLabel: name}},
			Data:       map[string][]byte{clusterapi.KubeconfigKey: []byte(name)},
		})
	}
	now := start.Time
	children := &Children{Cluster: &apply.Cluster{Client: builder.Build()}, Now: func() time.Time { return now }}
	read := func(name, version string) {
		t.Helper()
		r := &run{Children: children, child: &v1alpha1.Child{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: name}}}
		ref := kubeconfigRef{kind: fromSecret, name: clusterapi.KubeconfigSecret(name), key: clusterapi.KubeconfigKey}
		ref.version = secretSource(ref, &metav1.ObjectMeta{UID: types.UID(name), ResourceVersion: version})
		secret, err := r.kubeconfigSecret(t.Context(), ref)
		if err != nil || string(secret.Data[clusterapi.KubeconfigKey]) != name {
			t.Errorf("the Secret of %s is %v, %v", name, secret, err)
		}
	}
	named := map[types.NamespacedName]bool{}
	for _, name := range []string{"a", "b", "c"} {
		named[types.NamespacedName{Namespace: "fleet", Name: clusterapi.KubeconfigSecret(name)}] = true
	}
	if err := children.kubeconfigs.list(t.Context(), children.Cluster, named, now); err != nil || len(children.kubeconfigs.secrets) != 3 {
		t.Fatalf("list() = %v, and there are %d", err, len(children.kubeconfigs.secrets))
	}
	for _, tc := range []struct {
		reason, name, version string
		passed                time.Duration
		gets                  int
	}{
		{"it was listed", "a", "999", 0, 0},
		{"the child refused its credential", "a", "999", 0, 1},
		{"it was rotated since", "b", "1000", 0, 1},
		{"it was not asked for", "foreign", "999", 0, 1},
		{"it was listed long ago", "c", "999", crowdedFor + 1, 1},
	} {
		gets, now = 0, now.Add(tc.passed)
		if read(tc.name, tc.version); gets != tc.gets {
			t.Errorf("%s: %d requests, want %d", tc.reason, gets, tc.gets)
		}
	}
	if lists != 1 || len(children.kubeconfigs.secrets) != 0 {
		t.Errorf("%d lists, and %d Secrets are kept", lists, len(children.kubeconfigs.secrets))
	}
}

// TestTakeOverListsKubeconfigs: a shard with many children is a list, one with few is none.
func TestTakeOverListsKubeconfigs(t *testing.T) {
	for name, tc := range map[string]struct {
		reason   string
		children int
		machines int // with a Secret of the same label each
		fails    int // the page of the list that is not answered
		want     int
	}{
		"Many":     {"one by one they are seconds of work", mostUnmet + 1, 0, 0, mostUnmet + 1},
		"Few":      {"all Secrets of the tier are more than that", mostUnmet, 0, 0, 0},
		"Machines": {"most Secrets of the tier are of machines", mostUnmet + 1, (mostUnmet+1)*(perKubeconfig-1) + 1, 0, 0},
		"Part":     {"what was listed before the error is as good", 2 * kubeconfigPage, 0, 2, kubeconfigPage},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDescribed(t, withoutProvider)
			d.children.FirstSeeds = NewFirstSeeds(d.client, "cascade-system")
			secrets := fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme)
			for i := range tc.children {
				cluster := fmt.Sprintf("taken-%d", i)
				child := childNamed(cluster, nil)
				child.Spec.ClusterRef = &v1alpha1.LocalReference{Name: cluster}
				if err := d.client.Create(t.Context(), &child); err != nil {
					t.Fatal(err)
				}
				secrets.WithObjects(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{
					Namespace: child.Namespace, Name: clusterapi.KubeconfigSecret(cluster), Labels: map[string]string{clusterapi.ClusterNameLabel: cluster},
				}})
			}
			for i := range tc.machines {
				secrets.WithObjects(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{
					Namespace: "machines", Name: fmt.Sprintf("bootstrap-%d", i), Labels: map[string]string{clusterapi.ClusterNameLabel: "taken-1"},
				}})
			}
			pages := 0
			built := secrets.Build()
			d.children.Cluster, d.children.Cache = &apply.Cluster{Client: interceptor.NewClient(built, interceptor.Funcs{
				List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
					if pages++; pages == tc.fails {
						return errors.New("it does not answer")
					}
					return paged(ctx, c, list.(*corev1.SecretList), opts...)
				},
			})}, built
			woken := 0
			has := func(key types.NamespacedName) bool { return key.Name != d.child.Name }
			if err := d.children.begin(t.Context(), func(types.NamespacedName) { woken++ }, has); err != nil {
				t.Fatal(err)
			}
			if got := len(d.children.kubeconfigs.secrets); got != tc.want || woken < tc.children {
				t.Errorf("%s: %d are listed, and %d children are woken", tc.reason, got, woken)
			}
		})
	}
}

// paged answers a list in pages, as an API server does and the fake does not.
func paged(ctx context.Context, c client.Reader, list *corev1.SecretList, opts ...client.ListOption) error {
	asked := (&client.ListOptions{}).ApplyOptions(opts)
	from, err := strconv.Atoi("0" + asked.Continue)
	if err != nil {
		return err
	}
	all := &corev1.SecretList{}
	if err := c.List(ctx, all, client.HasLabels{clusterapi.ClusterNameLabel}); err != nil {
		return err
	}
	to := min(from+int(asked.Limit), len(all.Items))
	list.Items, list.Continue = all.Items[from:to], ""
	if to < len(all.Items) {
		list.Continue = strconv.Itoa(to)
	}
	return nil
}
