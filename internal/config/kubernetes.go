package config

import (
	"cmp"
	"path/filepath"
	"strings"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

// KubernetesConfig configures access to a Kubernetes cluster for responses, and the names of our nodes there.
type KubernetesConfig struct {
	// Kubeconfig is the absolute path of a kubeconfig file. Default none: the supervisor runs in a pod, and acts as its
	// service account.
	Kubeconfig string `json:"kubeconfig,omitempty"`
	// Context of Kubeconfig. Default its current one.
	Context string `json:"context,omitempty"`
	// NodeName is the pattern for a node's name in Kubernetes: {node}, exactly once, stands for the node's name here,
	// as in {node}.example.org. Default {node}.
	NodeName string `json:"nodeName,omitempty"`
	// NodeLabel is the key of a label on Kubernetes nodes whose value is the node's name here. Only without NodeName.
	// Default none.
	NodeLabel string `json:"nodeLabel,omitempty"`
	// QPS is the maximum rate of requests to the API server, in requests per second, 1 to 2000. Requests for events
	// have the same rate on top, so that they delay no others. 0 stands for 200, the default.
	QPS int `json:"qps,omitempty"`
	// Burst is the maximum number of requests at once after a pause, 1 to 4000. 0 stands for 400, the default.
	Burst int `json:"burst,omitempty"`
	// RequestTimeout bounds one request, 100ms to 1m. 0 stands for 5s, the default.
	RequestTimeout Duration `json:"requestTimeout,omitzero"`
}

// nodeHole is the placeholder for a node's id in KubernetesConfig.NodeName.
const nodeHole = "{node}"

// Filled returns the configuration with its defaults filled in.
func (c KubernetesConfig) Filled() KubernetesConfig {
	if c.NodeName == "" && c.NodeLabel == "" {
		c.NodeName = nodeHole
	}
	c.QPS = cmp.Or(c.QPS, 200)
	c.Burst = cmp.Or(c.Burst, 400)
	if c.RequestTimeout == 0 {
		c.RequestTimeout = Duration(5 * time.Second)
	}
	return c
}

// NameOf returns the node's name in Kubernetes, for nodes without NodeLabel.
func (c KubernetesConfig) NameOf(n fault.NodeID) string {
	return strings.Replace(c.Filled().NodeName, nodeHole, string(n), 1)
}

var kubernetesNodeName = lazily(`^[a-z0-9.-]*\{node\}[a-z0-9.-]*$`)

// Validate names every bad field at once.
func (c KubernetesConfig) Validate() error {
	p := &problems{}
	if c.Kubeconfig != "" && !filepath.IsAbs(c.Kubeconfig) {
		p.bad("kubeconfig", c.Kubeconfig, "an absolute path, or nothing in a pod")
	}
	if c.Context != "" && c.Kubeconfig == "" {
		p.bad("context", c.Context, "nothing without kubeconfig")
	}
	if c.NodeName != "" && !kubernetesNodeName().MatchString(c.NodeName) {
		p.bad("nodeName", c.NodeName, "a text of a-z, 0-9, '-' and '.' with %s in it once", nodeHole)
	}
	if c.NodeLabel != "" {
		if c.NodeName != "" {
			p.bad("nodeLabel", c.NodeLabel, "nothing beside nodeName")
		}
		if err := fault.CheckLabelKey(c.NodeLabel); err != nil {
			p.wrap("nodeLabel", err)
		}
	}
	f := c.Filled()
	if f.QPS < 1 || f.QPS > 2000 {
		p.bad("qps", f.QPS, "1 to 2000")
	}
	if f.Burst < 1 || f.Burst > 4000 {
		p.bad("burst", f.Burst, "1 to 4000")
	}
	if d := time.Duration(f.RequestTimeout); d < 100*time.Millisecond || d > time.Minute {
		p.bad("requestTimeout", d, "100ms to 1m")
	}
	return p.err()
}
