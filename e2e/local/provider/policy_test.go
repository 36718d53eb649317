package provider

import (
	"errors"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cascade-gitops/cascade/e2e/local/config"
	"github.com/cascade-gitops/cascade/e2e/local/manifest"
)

func TestInfrastructureStatus(t *testing.T) {
	answering := &LocalControlPlane{}
	answering.Status.Initialization.ControlPlaneInitialized = true
	for _, c := range []struct {
		reason      string
		order       Order
		provisioned bool
		plane       *LocalControlPlane
		want        bool
	}{
		{"fast, no control plane yet", "", false, nil, false},
		{"fast, control plane starts", "", false, &LocalControlPlane{}, false},
		{"fast, control plane answers", "", false, answering, true},
		{"never taken back", "", true, &LocalControlPlane{}, true},
		{"slow says so at once", OrderSlow, false, nil, true},
	} {
		object := &LocalCluster{}
		object.Spec.Order, object.Status.Initialization.Provisioned = c.order, c.provisioned
		status := infrastructureStatus(object, c.plane)
		if status.Initialization.Provisioned != c.want || meta.IsStatusConditionTrue(status.Conditions, "Ready") != c.want {
			t.Errorf("%s: %+v", c.reason, status)
		}
	}
}

func TestControlPlaneStatus(t *testing.T) {
	object := &LocalControlPlane{}
	object.UID = types.UID("01234567-89ab")
	object.Status = controlPlaneStatus(object, "StartFailed", errors.New("no"))
	if object.Status.Initialization.ControlPlaneInitialized || meta.IsStatusConditionTrue(object.Status.Conditions, "Available") {
		t.Errorf("a failed start: %+v", object.Status)
	}
	object.Status = controlPlaneStatus(object, "", nil)
	if !object.Status.Initialization.ControlPlaneInitialized || !meta.IsStatusConditionTrue(object.Status.Conditions, "Available") {
		t.Errorf("running: %+v", object.Status)
	}
	object.Status = controlPlaneStatus(object, "NotAnswering", errors.New("silent"))
	if !object.Status.Initialization.ControlPlaneInitialized || meta.IsStatusConditionTrue(object.Status.Conditions, "Available") {
		t.Errorf("an outage: %+v", object.Status)
	}
}

func TestID(t *testing.T) {
	object := &LocalControlPlane{}
	object.Name, object.UID = strings.Repeat("n", 60), types.UID("01234567-89ab-cdef")
	if got := id(object); got != strings.Repeat("n", 24)+"-01234567" {
		t.Errorf("id %s", got)
	}
	object.Spec.ID = "region-one"
	if got := id(object); got != "region-one" {
		t.Errorf("id %s", got)
	}
}

func TestPaused(t *testing.T) {
	owner := &cluster{&unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"paused": true}}}}
	object := &LocalCluster{}
	if !owner.paused(object) {
		t.Error("a paused Cluster is not paused")
	}
	var none *cluster
	if none.paused(object) {
		t.Error("paused without a reason")
	}
	object.Annotations = map[string]string{pausedAnnotation: ""}
	if !none.paused(object) {
		t.Error("the annotation is not heeded")
	}
}

// TestContract checks what Cluster API reads of the definitions without telling anyone that it is missing.
func TestContract(t *testing.T) {
	for _, name := range []string{"localclusters", "localcontrolplanes"} {
		stream, err := config.CRDs.ReadFile("crd/" + name + ".yaml")
		if err != nil {
			t.Fatal(err)
		}
		objects, err := manifest.Decode(stream)
		if err != nil || len(objects) != 1 {
			t.Fatalf("%s: %d objects, %v", name, len(objects), err)
		}
		if got := objects[0].GetLabels()["cluster.x-k8s.io/v1beta2"]; got != "v1alpha1" {
			t.Errorf("%s: the contract label is %q", name, got)
		}
		if group, _, _ := unstructured.NestedString(objects[0].Object, "spec", "group"); objects[0].GetName() != name+"."+group {
			t.Errorf("%s: the name is %s", name, objects[0].GetName())
		}
	}
}
