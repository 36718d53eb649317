package node

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
)

const (
	accountMount   = "/var/run/secrets/kubernetes.io/serviceaccount"
	temporaryMount = "/tmp"
)

// unsupported says why a pod cannot run as processes of the host, or nothing if it can.
func unsupported(spec *corev1.PodSpec) string {
	volumes := map[string]corev1.VolumeSource{}
	for _, volume := range spec.Volumes {
		volumes[volume.Name] = volume.VolumeSource
	}
	for i, container := range allContainers(spec) {
		if len(container.Command) == 0 {
			return fmt.Sprintf("container %s has no command: there are no images here, only commands of the host run", container.Name)
		}
		if container.Lifecycle != nil {
			return fmt.Sprintf("container %s has lifecycle hooks, which are not run here", container.Name)
		}
		if i < len(spec.InitContainers) && container.RestartPolicy != nil {
			return fmt.Sprintf("init container %s has a restart policy: sidecars are not run here", container.Name)
		}
		for _, probe := range []*corev1.Probe{container.StartupProbe, container.ReadinessProbe, container.LivenessProbe} {
			if probe != nil && probe.GRPC != nil {
				return fmt.Sprintf("container %s has a gRPC probe, which is not asked here", container.Name)
			}
		}
		for _, mount := range container.VolumeMounts {
			switch {
			case mount.MountPath == accountMount:
			case mount.MountPath == temporaryMount && volumes[mount.Name].EmptyDir != nil:
			default:
				return fmt.Sprintf("container %s mounts volume %s at %s: processes share the file system of the host, "+
					"only an emptyDir at %s and the service account can be mounted", container.Name, mount.Name, mount.MountPath, temporaryMount)
			}
		}
		if len(container.VolumeDevices) > 0 {
			return fmt.Sprintf("container %s asks for block devices", container.Name)
		}
		for _, variable := range container.Env {
			if variable.ValueFrom != nil && variable.ValueFrom.FileKeyRef != nil {
				return fmt.Sprintf("container %s takes variable %s from a file of a volume", container.Name, variable.Name)
			}
		}
	}
	return ""
}
