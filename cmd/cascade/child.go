package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	ssautil "github.com/fluxcd/pkg/ssa/utils"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/cascade-gitops/cascade/api/clusterapi"
	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote/epoch"
	"github.com/cascade-gitops/cascade/remote/record"
	"github.com/cascade-gitops/cascade/remote/selection"
)

const (
	// childManager is the field manager of what these verbs write, on both sides.
	childManager = "cascade-child"
	// childAccount is the account in a child by which a tier reaches it for the first time.
	// It may do anything: with it the parent writes the roles of its own account, and prunes.
	childAccount = "cascade-child"
	// childAccountNamespace is where it is. The agent's namespace does not exist yet.
	childAccountNamespace = metav1.NamespaceSystem
	// accountOfAnnotation on the account is the UID of the kube-system of the tier that added the
	// cluster last: all tiers have one account there, and one token.
	accountOfAnnotation = v1alpha1.Group + "/account-of"
)

func (c *cli) newChild() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "child",
		Short: "Add clusters that Cluster API did not make to this tier, and remove them",
	}
	cmd.AddCommand(c.newChildAdd(), c.newChildRemove())
	return cmd
}

// childFlags say how the cluster is reached that becomes a child, from here and from the tier.
type childFlags struct {
	kubeconfig, context, server string
}

func (f *childFlags) bind(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.kubeconfig, "child-kubeconfig", "", "file with an administrator's kubeconfig of the child")
	cmd.Flags().StringVar(&f.context, "child-context", "", "context in it, if not the current one")
}

// connect connects to the child.
func (f *childFlags) connect() (*rest.Config, client.Client, error) {
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
		&clientcmd.ClientConfigLoadingRules{ExplicitPath: f.kubeconfig}, &clientcmd.ConfigOverrides{CurrentContext: f.context}).ClientConfig()
	if err != nil {
		return nil, nil, fmt.Errorf("cannot load --child-kubeconfig: %w", err)
	}
	cl, err := client.New(config, client.Options{Scheme: newScheme()})
	if err != nil {
		return nil, nil, fmt.Errorf("cannot connect to the child: %w", err)
	}
	return config, cl, nil
}

func (c *cli) newChildAdd() *cobra.Command {
	flags, a := &childFlags{}, &childAdd{cli: c}
	cmd := &cobra.Command{
		Use:   "add <name>",
		Short: "Add a cluster that Cluster API did not make: an account there, and a Child here",
		Long: "Add a cluster that Cluster API did not make. It makes a service account in the cluster, which may do\n" +
			"anything there, as the parent gives its own account the rights that the layers need, and prunes with it.\n" +
			"The account's token goes into a Secret beside the Child. A cluster of a cloud needs no stored token:\n" +
			"see spec.kubeConfig.configMapRef in docs/clusters.md.\n\n" +
			"With the same name again it repairs what is missing; labels that it gave the Child stay, until\n" +
			"--label name- takes one off. --export prints the Secret and the Child instead of writing them, for a\n" +
			"repository; encrypt the Secret before it gets there. A cluster to which another tier pushes layers is\n" +
			"refused, until --take-over says that this tier is to go on there.",
		Example: "  cascade child add edge -n fleet --child-kubeconfig edge.yaml --label cascade.dev/tier=tenant",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), a.timeout)
			defer cancel()
			a.name, a.namespace = args[0], c.namespace()
			return a.run(ctx, flags)
		},
	}
	flags.bind(cmd)
	cmd.Flags().StringVar(&flags.server, "server-for-parent", "", "URL at which this tier reaches the child's API server, if not that of the kubeconfig")
	cmd.Flags().StringSliceVar(&a.labels, "label", nil, "labels of the Child, by which Layers select it: name=value, or name- to take one off")
	cmd.Flags().BoolVar(&a.export, "export", false, "print the Secret and the Child instead of writing them")
	cmd.Flags().BoolVar(&a.takeOver, "take-over", false, "add a cluster to which another tier pushed layers that is gone, or that has let go of it")
	cmd.Flags().DurationVar(&a.timeout, "timeout", time.Minute, "how long it may take")
	_ = cmd.MarkFlagRequired("child-kubeconfig") // it is there
	c.flags.AddFlags(cmd.Flags())
	return cmd
}

// childAdd is one call of the verb.
type childAdd struct {
	*cli
	name, namespace string
	labels          []string
	export          bool
	takeOver        bool
	// approval is for the agent to take the cluster over under another name, empty if it need not be asked.
	approval string
	timeout  time.Duration
}

func (a *childAdd) run(ctx context.Context, flags *childFlags) error {
	hub, err := a.client()
	if err != nil {
		return err
	}
	config, child, err := flags.connect()
	if err != nil {
		return err
	}
	found, err := a.admit(ctx, hub, child)
	if err != nil {
		return err
	}
	labels, err := a.labelsOf(found)
	if err != nil {
		return err
	}
	tier, err := systemUID(ctx, hub)
	if err != nil {
		return fmt.Errorf("cannot tell which tier this is: %w", err)
	}
	fmt.Fprintf(a.streams.ErrOut, "► making service account %s/%s in the child\n", childAccountNamespace, childAccount)
	for _, o := range accountOfChild(tier) {
		if err := serverSideApply(ctx, child, o); err != nil {
			return fmt.Errorf("cannot make the account in the child: %w", err)
		}
	}
	token, err := awaitToken(ctx, child)
	if err != nil {
		return err
	}
	kubeconfig, err := kubeconfigOf(config, flags.server, token)
	if err != nil {
		return err
	}
	secret, declared := childObjects(a.namespace, a.name, labels, kubeconfig)
	if a.approval != "" {
		declared.Annotations = map[string]string{v1alpha1.ApproveTakeOverAnnotation: a.approval}
	}
	if a.export {
		return a.print(secret, asDeclared(declared, found))
	}
	for _, o := range []client.Object{secret, declared} {
		if err := serverSideApply(ctx, hub, o); err != nil {
			return fmt.Errorf("cannot write to this tier: %w", err)
		}
	}
	fmt.Fprintf(a.streams.Out, "✔ Child %s/%s is there; Layers of its namespace select it by its labels\n", a.namespace, a.name)
	return nil
}

// admit refuses a cluster that is a child already, and a name that is another's. It returns the
// Child that has the name, nil if there is none.
func (a *childAdd) admit(ctx context.Context, hub, child client.Client) (*v1alpha1.Child, error) {
	system, err := systemUID(ctx, child)
	if err != nil {
		return nil, fmt.Errorf("cannot reach the child: %w", err)
	}
	children := &v1alpha1.ChildList{}
	if err := hub.List(ctx, children); err != nil {
		return nil, fmt.Errorf("cannot list Children: %w", err)
	}
	var own *v1alpha1.Child
	for i := range children.Items {
		found := &children.Items[i]
		same := found.Namespace == a.namespace && found.Name == a.name
		if same {
			own = found
		}
		switch id := found.Status.Identity; {
		case same && found.Spec.ClusterRef != nil:
			return nil, fmt.Errorf("cannot add Child %s/%s: it is that of a Cluster of Cluster API; use another name", a.namespace, a.name)
		case same && id != nil && id.KubeSystemUID != system:
			return nil, fmt.Errorf("cannot add Child %s/%s: it is another cluster, whose kube-system has UID %s; use another name, or remove that one first", a.namespace, a.name, id.KubeSystemUID)
		case !same && id != nil && id.KubeSystemUID == system:
			return nil, fmt.Errorf("cannot add Child %s/%s: the cluster is Child %s/%s already", a.namespace, a.name, found.Namespace, found.Name)
		}
	}
	if own == nil || own.Status.Identity == nil { // else the agent has met it
		if err := a.admitRecords(ctx, hub, child); err != nil {
			return nil, err
		}
	}
	if a.export {
		return own, nil
	}
	return own, a.admitSecret(ctx, hub, own)
}

// admitRecords refuses a cluster that has records of another tier, unless a person says that it may be taken over: the agent
// would do so by itself, as of a tier that was lost, under the name that it has there. Under another one it asks for an approval,
// and that of a Cluster of Cluster API it never takes. What a tier in the cluster itself pushes there stays its own.
func (a *childAdd) admitRecords(ctx context.Context, hub, child client.Client) error {
	records, err := record.List(ctx, child)
	if err != nil {
		return err
	}
	if len(records) == 0 {
		return nil
	}
	known, err := marksIn(ctx, hub, agentNamespace(ctx, hub, ""))
	if err != nil {
		return err
	}
	below, _ := epoch.Below(ctx, child) // by what cannot be read nothing is known to be its own
	known = append(known, below...)
	for _, found := range records {
		by, from := found.Cluster, found.Parent
		if from.Holder == "" || slices.ContainsFunc(known, func(m epoch.Mark) bool { return m.Holder == from.Holder }) {
			continue
		}
		other := by.Name != "" && (by.Namespace != a.namespace || by.Name != a.name)
		pushes := fmt.Sprintf("cannot add Child %s/%s: another tier, process %s, pushes layer %s to the cluster", a.namespace, a.name, from.Holder, found.Layer)
		if by.Name != "" {
			pushes += fmt.Sprintf(", as its child %s/%s", by.Namespace, by.Name)
		}
		switch {
		case other && by.UID != "":
			return fmt.Errorf("%s. Correct --child-kubeconfig; if that tier is gone, delete the ConfigMaps with label %s in namespace %s of the cluster first", pushes, v1alpha1.RecordLabel, v1alpha1.AgentNamespace)
		case !a.takeOver:
			return fmt.Errorf("%s. Correct --child-kubeconfig; if that tier is gone, or has let go of it, --take-over lets this one go on there", pushes)
		case other:
			a.approval = from.Approval()
		}
	}
	return nil
}

// marksIn are the processes that led the tier in a cluster, none if none did.
func marksIn(ctx context.Context, c client.Client, namespace string) ([]epoch.Mark, error) {
	cm := &corev1.ConfigMap{}
	if err := c.Get(ctx, client.ObjectKey{Namespace: namespace, Name: v1alpha1.EpochConfigMap}, cm); client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("cannot read who led the tier, ConfigMap %s/%s: %w", namespace, v1alpha1.EpochConfigMap, err)
	}
	return epoch.MarksOf(cm)
}

// admitSecret refuses to write over a kubeconfig that somebody else made. It is ours where the Child that is
// found names it, as after --export, or where an earlier call wrote it and did not get to the Child.
func (a *childAdd) admitSecret(ctx context.Context, hub client.Client, own *v1alpha1.Child) error {
	name := client.ObjectKey{Namespace: a.namespace, Name: clusterapi.KubeconfigSecret(a.name)}
	if own != nil && own.Spec.KubeConfig != nil && own.Spec.KubeConfig.SecretRef != nil && own.Spec.KubeConfig.SecretRef.Name == name.Name {
		return nil
	}
	secret := &metav1.PartialObjectMetadata{}
	secret.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Secret"))
	err := hub.Get(ctx, name, secret)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot read Secret %s: %w", name, err)
	}
	for _, m := range secret.ManagedFields {
		if m.Manager == childManager && m.Operation == metav1.ManagedFieldsOperationApply {
			return nil
		}
	}
	return fmt.Errorf("cannot add Child %s/%s: Secret %s is another's, and would be written over; use another name, or delete the Secret if nothing needs it", a.namespace, a.name, name)
}

// labelsOf are the labels for a Child that is found, or nil, with the changes that are said. An
// apply has those that an earlier one gave it: left out, a label would go, and with it what Layers
// put into the cluster. What is printed takes the place of the whole Child, and has all.
func (a *childAdd) labelsOf(found *v1alpha1.Child) (map[string]string, error) {
	labels := map[string]string{}
	if found != nil {
		owned, err := ownedLabels(found)
		if err != nil {
			return nil, err
		}
		maps.Copy(labels, found.Labels)
		maps.DeleteFunc(labels, func(name, _ string) bool {
			if a.export {
				return marksApplier(name)
			}
			return !owned[name]
		})
	}
	for _, change := range a.labels {
		name, value, is := strings.Cut(change, "=")
		if off, without := strings.CutSuffix(change, "-"); !is && without {
			delete(labels, off)
			continue
		}
		if !is {
			return nil, fmt.Errorf("cannot read --label %s: use name=value, or name- to take it off", change)
		}
		labels[name] = value
	}
	return labels, nil
}

// marksApplier reports whether whoever applies an object writes this label.
func marksApplier(label string) bool {
	domain, _, _ := strings.Cut(label, "/")
	return domain == v1alpha1.LayerLabelGroup || domain == v1alpha1.InstallLabelGroup || strings.HasSuffix(domain, ".toolkit.fluxcd.io") ||
		label == "app.kubernetes.io/managed-by"
}

// asksOrRecords reports whether an annotation is a request or a record, which nobody declares: of
// whoever applies an object, of reconcile, or of us, as an approval is.
func asksOrRecords(annotation string) bool {
	domain, _, _ := strings.Cut(annotation, "/")
	return slices.Contains([]string{"kubectl.kubernetes.io", "meta.helm.sh", "reconcile.fluxcd.io", v1alpha1.Group}, domain)
}

// asDeclared gives a Child that is printed what people declare in the one that is found, which may be nil.
func asDeclared(child, found *v1alpha1.Child) *v1alpha1.Child {
	if found == nil {
		return child
	}
	child.Spec.Suspend = found.Spec.Suspend
	for name, value := range found.Annotations {
		if !asksOrRecords(name) {
			metav1.SetMetaDataAnnotation(&child.ObjectMeta, name, value)
		}
	}
	return child
}

// ownedLabels are the names of the labels that `cascade child add` wrote.
func ownedLabels(o client.Object) (map[string]bool, error) {
	names := map[string]bool{}
	for _, m := range o.GetManagedFields() {
		if m.Manager != childManager || m.Operation != metav1.ManagedFieldsOperationApply {
			continue
		}
		owned, err := selection.Owned(m)
		if err != nil {
			return nil, fmt.Errorf("cannot read the managed fields of %s: %w", client.ObjectKeyFromObject(o), err)
		}
		for _, name := range owned {
			names[name] = true
		}
	}
	return names, nil
}

func (a *childAdd) print(objects ...client.Object) error {
	var all []*unstructured.Unstructured
	for _, o := range objects {
		fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
		if err != nil {
			return fmt.Errorf("cannot print: %w", err)
		}
		delete(fields, "status")
		u := &unstructured.Unstructured{Object: fields}
		unstructured.RemoveNestedField(u.Object, "metadata", "creationTimestamp")
		all = append(all, u)
	}
	text, err := ssautil.ObjectsToYAML(all)
	if err != nil {
		return fmt.Errorf("cannot print: %w", err)
	}
	_, err = fmt.Fprint(a.streams.Out, text)
	return err
}

// systemUID is the UID of the kube-system of a cluster, which tells it from others.
func systemUID(ctx context.Context, c client.Client) (string, error) {
	system := &corev1.Namespace{}
	err := c.Get(ctx, client.ObjectKey{Name: metav1.NamespaceSystem}, system)
	return string(system.UID), err
}

// accountOfChild are the objects by which a tier reaches a child. The token does not lapse:
// it is the way back when that of the parent's own account has.
func accountOfChild(tier string) []client.Object {
	name := metav1.ObjectMeta{Namespace: childAccountNamespace, Name: childAccount}
	account, token := name, name
	account.Annotations = map[string]string{accountOfAnnotation: tier}
	token.Annotations = map[string]string{corev1.ServiceAccountNameKey: childAccount}
	return []client.Object{
		&corev1.ServiceAccount{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ServiceAccount"}, ObjectMeta: account},
		&rbacv1.ClusterRoleBinding{
			TypeMeta:   metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "ClusterRoleBinding"},
			ObjectMeta: metav1.ObjectMeta{Name: childAccount},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
			Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: childAccountNamespace, Name: childAccount}},
		},
		&corev1.Secret{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"}, ObjectMeta: token, Type: corev1.SecretTypeServiceAccountToken},
	}
}

// awaitToken waits until the child has issued the token.
func awaitToken(ctx context.Context, child client.Client) (string, error) {
	secret := &corev1.Secret{}
	err := wait.PollUntilContextCancel(ctx, 200*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		err := child.Get(ctx, client.ObjectKey{Namespace: childAccountNamespace, Name: childAccount}, secret)
		return err == nil && len(secret.Data[corev1.ServiceAccountTokenKey]) > 0, client.IgnoreNotFound(err)
	})
	if err != nil {
		return "", fmt.Errorf("cannot get a token of the account in the child: %w; see Secret %s/%s there, which its kube-controller-manager fills", err, childAccountNamespace, childAccount)
	}
	return string(secret.Data[corev1.ServiceAccountTokenKey]), nil
}

// kubeconfigOf is one with a token, for the server of a connection, or another one.
func kubeconfigOf(config *rest.Config, server, token string) ([]byte, error) {
	if server == "" {
		server = config.Host
	}
	if !strings.HasPrefix(server, "https://") {
		return nil, fmt.Errorf("cannot use %s: the token would go there in the clear; say --server-for-parent https://", server)
	}
	tls := rest.CopyConfig(config)
	if err := rest.LoadTLSFiles(tls); err != nil {
		return nil, fmt.Errorf("cannot read the CA of --child-kubeconfig: %w", err)
	}
	if tls.Insecure {
		return nil, errors.New("cannot use --child-kubeconfig: it does not verify the certificate of the server; give it the CA instead")
	}
	out := clientcmdapi.NewConfig()
	out.Clusters["child"] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: tls.CAData, TLSServerName: tls.ServerName}
	out.AuthInfos["parent"] = &clientcmdapi.AuthInfo{Token: token}
	out.Contexts["child"] = &clientcmdapi.Context{Cluster: "child", AuthInfo: "parent"}
	out.CurrentContext = "child"
	text, err := clientcmd.Write(*out)
	if err != nil {
		return nil, fmt.Errorf("cannot write kubeconfig: %w", err)
	}
	return text, nil
}

// childObjects are the Secret and the Child in the tier.
func childObjects(namespace, name string, labels map[string]string, kubeconfig []byte) (*corev1.Secret, *v1alpha1.Child) {
	secret := clusterapi.KubeconfigSecret(name)
	return &corev1.Secret{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"}, ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: secret},
			Data: map[string][]byte{clusterapi.KubeconfigKey: kubeconfig}, Type: corev1.SecretTypeOpaque,
		}, &v1alpha1.Child{
			TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "Child"},
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: labels},
			Spec:       v1alpha1.ChildSpec{KubeConfig: &v1alpha1.KubeConfigReference{SecretRef: &v1alpha1.SecretKeyReference{Name: secret}}},
		}
}

// serverSideApply applies a typed object.
func serverSideApply(ctx context.Context, c client.Client, o client.Object) error {
	gvk, err := apiutil.GVKForObject(o, c.Scheme())
	if err != nil {
		return err
	}
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		return fmt.Errorf("cannot convert %s %s: %w", gvk.Kind, o.GetName(), err)
	}
	u := &unstructured.Unstructured{Object: fields}
	delete(u.Object, "status")
	unstructured.RemoveNestedField(u.Object, "metadata", "creationTimestamp")
	if err := c.Apply(ctx, client.ApplyConfigurationFromUnstructured(u), client.FieldOwner(childManager), client.ForceOwnership); err != nil {
		return fmt.Errorf("cannot apply %s %s: %w", gvk.Kind, o.GetName(), err)
	}
	return nil
}

func (c *cli) newChildRemove() *cobra.Command {
	flags, timeout := &childFlags{}, time.Duration(0)
	cmd := &cobra.Command{
		Use:   "remove <name>",
		Short: "Remove a cluster that was added by hand: the Child here, and the account there",
		Long: "Remove a cluster that was added by hand. What layers put into it stays there, as do its workloads. With\n" +
			"--child-kubeconfig the account that `cascade child add` made in the cluster goes, too, unless another\n" +
			"tier reaches the cluster by it.",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: c.completeName("child"),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			hub, err := c.client()
			if err != nil {
				return err
			}
			var child client.Client
			if flags.kubeconfig != "" {
				if _, child, err = flags.connect(); err != nil {
					return err
				}
			}
			return c.removeChild(ctx, hub, child, client.ObjectKey{Namespace: c.namespace(), Name: args[0]})
		},
	}
	flags.bind(cmd)
	cmd.Flags().DurationVar(&timeout, "timeout", time.Minute, "how long it may take")
	c.flags.AddFlags(cmd.Flags())
	return cmd
}

// removeChild removes a Child and, where the cluster is given as well, the account there unless
// another tier uses it. What Git declares is not for it to remove.
func (c *cli) removeChild(ctx context.Context, hub, child client.Client, key client.ObjectKey) error {
	if child != nil {
		if err := isClusterOf(ctx, hub, child, key); err != nil {
			return err
		}
	}
	found := &v1alpha1.Child{}
	err := hub.Get(ctx, key, found)
	there := err == nil
	switch owner := declaredBy(found); {
	case client.IgnoreNotFound(err) != nil:
		return fmt.Errorf("cannot read Child %s: %w", key, err)
	case there && found.Spec.ClusterRef != nil:
		return fmt.Errorf("cannot remove Child %s: it is that of a Cluster of Cluster API, and comes back as long as that is there", key)
	case there && owner != "":
		return fmt.Errorf("cannot remove Child %s: %s declares it, and would make it again without the account; take it out of Git first, and say this again for the account. "+
			"If it stays although it is not in Git any more: kubectl delete child %s -n %s", key, owner, key.Name, key.Namespace)
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: clusterapi.KubeconfigSecret(key.Name)}}
	if err := hub.Get(ctx, client.ObjectKeyFromObject(secret), secret); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("cannot read Secret %s: %w", secret.Name, err)
	}
	var account *corev1.ServiceAccount
	var user string
	if child != nil {
		if account, user, err = accountIn(ctx, hub, child, found); err != nil {
			return err
		}
	}
	// An earlier call that did not end may have left the Secret, or the account.
	if !there && !isOurs(secret) && account == nil {
		return fmt.Errorf("cannot remove Child %s: there is none, and nothing is left of one; -n says in which namespace it is", key)
	}
	if there {
		if err := hub.Delete(ctx, found, client.Preconditions{UID: &found.UID}); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("cannot delete Child %s: %w", key, err)
		}
	}
	// One of Cluster API, or of somebody else, stays.
	if isOurs(secret) {
		if err := hub.Delete(ctx, secret, client.Preconditions{UID: &secret.UID}); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("cannot delete Secret %s: %w", secret.Name, err)
		}
	}
	fmt.Fprintf(c.streams.Out, "✔ Child %s is gone; what its layers put into the cluster stays there\n", key)
	if child == nil {
		return nil
	}
	if user != "" {
		text := fmt.Sprintf("service account %s/%s stays in it: %s reaches the cluster by it; if that one is no more: kubectl delete serviceaccount/%s clusterrolebinding/%s -n %s, there",
			childAccountNamespace, childAccount, user, childAccount, childAccount, childAccountNamespace)
		if found.Status.SupersededBy != nil {
			fmt.Fprintf(c.streams.Out, "► %s\n", text)
			return nil
		}
		return errors.New(text) // whoever asks for the account to go may be the tier that it names
	}
	for _, o := range accountOfChild("") {
		if err := child.Delete(ctx, o); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("cannot delete the account in the child: %w", err)
		}
	}
	fmt.Fprintf(c.streams.Out, "✔ service account %s/%s is gone from it\n", childAccountNamespace, childAccount)
	return nil
}

// accountIn reads the account in a child, nil if it has none, and says which other tier uses it,
// empty if none is known to. One that an earlier version of `cascade child add` made names no tier;
// what took the Child over may use it.
func accountIn(ctx context.Context, hub, child client.Client, of *v1alpha1.Child) (account *corev1.ServiceAccount, user string, err error) {
	account = &corev1.ServiceAccount{}
	if err := child.Get(ctx, client.ObjectKey{Namespace: childAccountNamespace, Name: childAccount}, account); apierrors.IsNotFound(err) {
		return nil, "", nil
	} else if err != nil {
		return nil, "", fmt.Errorf("cannot read the account in the child: %w", err)
	}
	if by := of.Status.SupersededBy; by != nil {
		return account, "the management cluster that took it over, process " + by.Holder + ",", nil
	}
	tier := account.Annotations[accountOfAnnotation]
	if tier == "" {
		return account, "", nil
	}
	own, err := systemUID(ctx, hub)
	if err != nil {
		return nil, "", fmt.Errorf("cannot tell which tier this is: %w; without --child-kubeconfig the account in the child stays", err)
	}
	if tier == own {
		return account, "", nil
	}
	return account, "the tier whose kube-system has UID " + tier + ", another one or this one before it was made anew,", nil
}

// isClusterOf refuses another cluster than that of a Child, which may be gone already: a
// kubeconfig has several contexts, and each child has an account of the same name.
func isClusterOf(ctx context.Context, hub, child client.Client, key client.ObjectKey) error {
	system, err := systemUID(ctx, child)
	if err != nil {
		return fmt.Errorf("cannot reach the child: %w; without --child-kubeconfig its account stays", err)
	}
	children := &v1alpha1.ChildList{}
	if err := hub.List(ctx, children); err != nil {
		return fmt.Errorf("cannot list Children: %w", err)
	}
	for i := range children.Items {
		found := &children.Items[i]
		same, id := client.ObjectKeyFromObject(found) == key, found.Status.Identity
		switch {
		case id == nil:
		case same && id.KubeSystemUID != system:
			return fmt.Errorf("cannot remove Child %s: --child-kubeconfig leads to another cluster, whose kube-system has UID %s and not %s; say --child-context", key, system, id.KubeSystemUID)
		case !same && id.KubeSystemUID == system:
			return fmt.Errorf("cannot remove Child %s: --child-kubeconfig leads to the cluster of Child %s, whose kube-system has UID %s; say --child-context", key, client.ObjectKeyFromObject(found), system)
		}
	}
	return nil
}

// isOurs reports whether `cascade child add` wrote a Secret.
func isOurs(secret *corev1.Secret) bool {
	for _, m := range secret.ManagedFields {
		if m.Manager == childManager && m.Operation == metav1.ManagedFieldsOperationApply {
			return true
		}
	}
	return false
}
