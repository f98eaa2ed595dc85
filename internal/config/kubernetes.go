package config

import (
	"cmp"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
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
	// Conditions keeps conditions on all nodes, also on healthy ones. The service account needs the right to list and watch
	// nodes. Default none: only responses set conditions.
	Conditions *KubernetesConditions `json:"conditions,omitempty"`
	// Evidence lets policies require conditions that other programs set on nodes (spec.outside), such as
	// node-problem-detector. The service account needs the right to list and watch nodes. Default false: such policies start no response.
	Evidence bool `json:"evidence,omitempty"`
	// GoodConditions has the healthy status of other programs' conditions, True or False by type, such as {EtcdIsVoter: "True"}. At most 64.
	// Default: a type that ends in a word such as Ready, Healthy or Available is healthy when True, and any other when False.
	GoodConditions map[string]string `json:"goodConditions,omitempty"`
}

// KubernetesConditions configures the conditions that the leader keeps on every known node of Kubernetes: those that policies
// set, False until a response makes one True, and lofamo.io/LinksReady, True while the node's agent has reported and all its
// links are NORMAL.
type KubernetesConditions struct {
	// Enabled keeps the conditions. false removes them again, which needs no more rights than responses do. Default false.
	Enabled bool `json:"enabled"`
	// Types of conditions that policies set, at most 8. Default LofamoFault, that of the shipped policies.
	Types []string `json:"types,omitempty"`
	// Heartbeat is the longest time between two updates of a condition's lastHeartbeatTime, 1m to 1h. 0 stands for 5m, the
	// default.
	Heartbeat Duration `json:"heartbeat,omitzero"`
}

// Filled returns the configuration with its defaults filled in.
func (c KubernetesConditions) Filled() KubernetesConditions {
	if len(c.Types) == 0 {
		c.Types = []string{"LofamoFault"}
	}
	if c.Heartbeat == 0 {
		c.Heartbeat = Duration(5 * time.Minute)
	}
	return c
}

// maxConditionTypes bounds KubernetesConditions.Types, and maxGoodConditions KubernetesConfig.GoodConditions.
const (
	maxConditionTypes = 8
	maxGoodConditions = 64
)

var conditionType = lazily(`^[A-Z][A-Za-z0-9]{0,62}$`)

func (c KubernetesConditions) validate(p *problems) {
	if n := len(c.Types); n > maxConditionTypes {
		p.bad("conditions.types", n, "at most %d", maxConditionTypes)
	}
	kubelets := []string{"Ready", "MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable"}
	for i, t := range c.Types {
		at := fmt.Sprintf("conditions.types[%d]", i)
		switch {
		case !conditionType().MatchString(t):
			p.bad(at, t, "1 to 63 letters and digits, the first a capital")
		case slices.Contains(kubelets, t):
			p.bad(at, t, "none of %s: they are the kubelet's", strings.Join(kubelets, ", "))
		case slices.Contains(c.Types[:i], t):
			p.bad(at, t, "each type once")
		}
	}
	if d := c.Filled().Heartbeat.D(); d < time.Minute || d > time.Hour {
		p.bad("conditions.heartbeat", d.String(), "1m to 1h")
	}
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

// IDOf returns the node that has a name in Kubernetes, or "" if no node can have it, for nodes without NodeLabel.
func (c KubernetesConfig) IDOf(name string) fault.NodeID {
	before, after, _ := strings.Cut(c.Filled().NodeName, nodeHole)
	rest, ok := strings.CutPrefix(name, before)
	id, cut := strings.CutSuffix(rest, after)
	if !ok || !cut {
		return ""
	}
	return fault.NodeID(id)
}

var kubernetesNodeName = lazily(`^[a-z0-9.-]*\{node\}[a-z0-9.-]*$`)

func (c KubernetesConfig) validateGood(p *problems) {
	if n := len(c.GoodConditions); n > maxGoodConditions {
		p.bad("goodConditions", n, "at most %d", maxGoodConditions)
	}
	for _, typ := range slices.Sorted(maps.Keys(c.GoodConditions)) {
		at := "goodConditions." + typ
		if err := fault.CheckLabelKey(typ); err != nil {
			p.wrap(at, err)
		}
		if status := c.GoodConditions[typ]; status != "True" && status != "False" {
			p.bad(at, status, `"True" or "False", in quotes`)
		}
	}
}

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
	if c.Conditions != nil {
		c.Conditions.validate(p)
	}
	c.validateGood(p)
	return p.err()
}
