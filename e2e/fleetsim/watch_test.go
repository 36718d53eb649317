package fleetsim

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

func configMap(name, value string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{"value": value}}, Data: map[string]string{"value": value}}
}

// TestInformers: client-go's own informers, typed and of metadata only, see what
// happens.
func TestInformers(t *testing.T) {
	f := startFleet(t, Options{})
	c := addCluster(t, f, "one")
	api := clientOf(t, c, Certificate)
	config := configOf(t, c, Certificate)
	config.Timeout = 0
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	typed, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	partial, err := metadata.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	if err := api.Create(ctx, configMap("before", "1")); err != nil {
		t.Fatal(err)
	}
	of := corev1.SchemeGroupVersion.WithResource("configmaps")
	full := informers.NewSharedInformerFactory(typed, 0)
	some := metadatainformer.NewFilteredSharedInformerFactory(partial, 0, "", func(o *metav1.ListOptions) { o.LabelSelector = "value=2" })
	all, selected := full.Core().V1().ConfigMaps().Informer(), some.ForResource(of).Informer()
	full.StartWithContext(ctx)
	some.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), all.HasSynced, selected.HasSynced) {
		t.Fatal("the informers do not sync")
	}
	for i := range 3 {
		if err := api.Create(ctx, configMap(fmt.Sprint("c", i), strconv.Itoa(i))); err != nil {
			t.Fatal(err)
		}
	}
	sees := func(want, wantSelected int) {
		t.Helper()
		within(t, time.Minute, "the informers follow", func() error {
			if n, s := len(all.GetStore().List()), len(selected.GetStore().List()); n != want || s != wantSelected {
				return fmt.Errorf("%d and %d, want %d and %d", n, s, want, wantSelected)
			}
			return nil
		})
	}
	sees(4, 1)
	// Into the selection and out of it.
	for name, value := range map[string]string{"c0": "2", "c2": "3"} {
		if err := api.Update(ctx, configMap(name, value)); err != nil {
			t.Fatal(err)
		}
	}
	sees(4, 1)
	if err := api.Delete(ctx, configMap("c0", "")); err != nil {
		t.Fatal(err)
	}
	sees(3, 0)
	cancel()
	full.Shutdown()
	some.Shutdown()
	within(t, time.Minute, "watches end with their clients", func() error {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.watchers > 0 {
			return fmt.Errorf("%d are left", c.watchers)
		}
		return nil
	})
}

// TestWatchIsTooOld: a watch from a version whose changes are forgotten is told so.
func TestWatchIsTooOld(t *testing.T) {
	f := startFleet(t, Options{})
	c := addCluster(t, f, "one")
	api := clientOf(t, c, Certificate)
	ctx := t.Context()
	first := configMap("a", "0")
	if err := api.Create(ctx, first); err != nil {
		t.Fatal(err)
	}
	for i := range 3 * keptAtRest {
		if err := api.Update(ctx, configMap("a", strconv.Itoa(i+1))); err != nil {
			t.Fatal(err)
		}
	}
	w, err := api.Watch(ctx, &corev1.ConfigMapList{}, &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: first.ResourceVersion}})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	event := <-w.ResultChan()
	if err := apierrors.FromObject(event.Object); event.Type != apiwatch.Error || !apierrors.IsResourceExpired(err) {
		t.Errorf("got %s %v, want Expired", event.Type, err)
	}
}

// TestWatchInOrder: a watch misses nothing and gets everything in order, however
// many write.
func TestWatchInOrder(t *testing.T) {
	f := startFleet(t, Options{})
	c := addCluster(t, f, "one")
	api := clientOf(t, c, Certificate)
	ctx := t.Context()
	w, err := api.Watch(ctx, &corev1.ConfigMapList{}, client.InNamespace("default"))
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	const writers, each = 4, 50
	failures := make(chan error, writers)
	for i := range writers {
		go func() {
			for n := range each {
				err := api.Create(ctx, configMap(fmt.Sprintf("w%d-%d", i, n), "x"))
				if err != nil {
					failures <- err
					return
				}
			}
			failures <- nil
		}()
	}
	for range writers {
		if err := <-failures; err != nil {
			t.Fatal(err)
		}
	}
	last := uint64(0)
	for n := range writers * each {
		event, ok := <-w.ResultChan()
		if !ok {
			t.Fatalf("the watch ended after %d events", n)
		}
		cm, ok := event.Object.(*corev1.ConfigMap)
		if !ok {
			t.Fatal(errors.New("no ConfigMap"))
		}
		version, err := strconv.ParseUint(cm.ResourceVersion, 10, 64)
		if err != nil || version <= last || event.Type != apiwatch.Added {
			t.Fatalf("event %d is %s of version %s after %d", n, event.Type, cm.ResourceVersion, last)
		}
		last = version
	}
}
