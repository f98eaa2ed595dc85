package config

import (
	"cmp"
	"path/filepath"
	"time"
)

// KubernetesObjects shows faults as objects of a Kubernetes namespace, and takes policies from there. The leader does the work. All
// replicas alike.
type KubernetesObjects struct {
	// Namespace of the objects. Required with faults and policies.
	Namespace string `json:"namespace,omitempty"`
	// Kubeconfig is the absolute path of a kubeconfig file. Default none: the supervisor runs in a pod, and acts as its
	// service account.
	Kubeconfig string `json:"kubeconfig,omitempty"`
	// Context of Kubeconfig. Default its current one.
	Context string `json:"context,omitempty"`
	// Faults keeps one Fault object for each open incident. Default false.
	Faults bool `json:"faults,omitempty"`
	// Policies puts the policies of FaultPolicy objects in force: whoever may write these objects may order responses. Default false.
	Policies bool `json:"policies,omitempty"`
	// MaxFaults is the maximum number of Fault objects, 1 to 1000. One more object counts the rest. 0 stands for 200, the
	// default.
	MaxFaults int `json:"maxFaults,omitempty"`
	// KeepClosed is the time for which the object of a closed incident stays, 10s to 24h. 0 stands for 10m, the default.
	KeepClosed Duration `json:"keepClosed,omitzero"`
}

// Enabled reports whether the supervisors work with any objects.
func (c KubernetesObjects) Enabled() bool { return c.Faults || c.Policies }

// Filled returns the configuration with its defaults filled in.
func (c KubernetesObjects) Filled() KubernetesObjects {
	c.MaxFaults = cmp.Or(c.MaxFaults, 200)
	if c.KeepClosed == 0 {
		c.KeepClosed = Duration(10 * time.Minute)
	}
	return c
}

var namespaceName = lazily(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

func (c KubernetesObjects) validate(p *problems) {
	switch {
	case c.Enabled() != (c.Namespace != ""):
		p.bad("kubernetes.namespace", c.Namespace, "a namespace if there are objects, else nothing")
	case c.Enabled() && !namespaceName().MatchString(c.Namespace):
		p.bad("kubernetes.namespace", c.Namespace, "1 to 63 of a-z, 0-9 and '-', the first and last a letter or digit")
	}
	if c.Kubeconfig != "" && !filepath.IsAbs(c.Kubeconfig) {
		p.bad("kubernetes.kubeconfig", c.Kubeconfig, "an absolute path, or nothing in a pod")
	}
	if c.Context != "" && c.Kubeconfig == "" {
		p.bad("kubernetes.context", c.Context, "nothing without kubeconfig")
	}
	f := c.Filled()
	if f.MaxFaults < 1 || f.MaxFaults > 1000 {
		p.bad("kubernetes.maxFaults", f.MaxFaults, "1 to 1000")
	}
	if d := f.KeepClosed.D(); d < 10*time.Second || d > 24*time.Hour {
		p.bad("kubernetes.keepClosed", d.String(), "10s to 24h")
	}
}
