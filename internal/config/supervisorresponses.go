package config

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"
	"unicode"

	"github.com/lofamo/lofamo/pkg/response"
)

// SupervisorResponses says within which limits the supervisors act on faults, whatever policies say; without policies they do nothing.
type SupervisorResponses struct {
	// Enabled: the supervisors decide about responses. All replicas alike. Default true.
	Enabled bool `json:"enabled"`
	// MaxNodes is how many nodes may be under response at once: something was done that takes them, or a part of them, from use, and was
	// not put back. 1 to 1048576. Default 50.
	MaxNodes int `json:"maxNodes"`
	// MaxPercent is the same, of all nodes, rounded down, but always one. 1 to 100. Default 5.
	MaxPercent int `json:"maxPercent"`
	// MaxPerDomain is the same among nodes that share a value of one of the domain labels. 1 to 1048576. Default 2.
	MaxPerDomain int `json:"maxPerDomain"`
	// MaxPerPlane is the same among the nodes of a plane of the torus, in each dimension. 1 to 1048576. Default 4.
	MaxPerPlane int `json:"maxPerPlane"`
	// Rate is how many steps begin within RateWindow, notifications apart. 1 to 1048576. Default 30.
	Rate int `json:"rate"`
	// NotifyRate is how many notifications do. 1 to 1048576. Default 10000.
	NotifyRate int `json:"notifyRate"`
	// RateWindow is what the two are counted in, 1s or more. Default 1h.
	RateWindow Duration `json:"rateWindow"`
	// BreakerPercent of the nodes that go bad within BreakerWindow open the circuit breaker, which a person closes. 1 to 50. Default 20.
	BreakerPercent int `json:"breakerPercent"`
	// BreakerNodes have to at least. 1 to 1048576. Default 3.
	BreakerNodes int `json:"breakerNodes"`
	// BreakerWindow is 1s or more. Default 5m.
	BreakerWindow Duration `json:"breakerWindow"`
	// Grace is how long a new leader does nothing. Default 30s.
	Grace Duration `json:"grace"`
	// StormDelay is for how long a fault must have lasted before anything but a notification. Default 10s.
	StormDelay Duration `json:"stormDelay"`
	// Cooldown is between two responses on one node, notifications apart. Default 30m.
	Cooldown Duration `json:"cooldown"`
	// MaxEvidenceAge is how old the evidence of a fault may be, 1ms or more. Default 30s.
	MaxEvidenceAge Duration `json:"maxEvidenceAge"`
	// Approvals are how many people have to approve what may end work on a node, besides what a policy asks for. 0 to 2. Default 0.
	Approvals int `json:"approvals"`
	// ApprovalTime is for how long they are waited for, 1s or more. Default 4h.
	ApprovalTime Duration `json:"approvalTime"`
	// MaxActive is how many responses may be under way or wait. 1 to 1048576. Default 2000.
	MaxActive int `json:"maxActive"`
	// Keep is how long the record of a closed response is kept, at least as long as RateWindow, Cooldown and BreakerWindow. Default 168h.
	Keep Duration `json:"keep"`
	// OptOutLabel is the label whose value "true" keeps all but notifications from a node. Default lofamo.io/no-response.
	OptOutLabel string `json:"optOutLabel"`
	// SupervisorNodes says on which node each supervisor runs, by the supervisor's id, so that no response takes more of them than their quorum can lose:
	// a node of the topology, or "none": on a machine that is no node of it. "*" stands for all that are not named. One of which nothing is said is looked for
	// by its report and grpc addresses among those of the nodes' services; one that is not found there may be on any node. All replicas alike. Default none.
	SupervisorNodes map[string]string `json:"supervisorNodes,omitempty"`
	// AuditLines and AuditBytes bound what is kept of the audit in the store: export it to keep all of it. 1000 to 10000000. Default 100000.
	AuditLines int64 `json:"auditLines"`
	// AuditBytes is how much room these lines may take. 1 MiB to 1 GiB. Default 64 MiB.
	AuditBytes int64 `json:"auditBytes"`
	// Executors are what steps of policies are carried out by. A step for which there is none fails, and says so. All replicas alike.
	Executors ResponseExecutors `json:"executors,omitzero"`
}

// ResponseExecutors is what the supervisors carry steps of responses out by, beside what agents allow (docs/responses-node.md).
type ResponseExecutors struct {
	// Kubernetes is the cluster that the nodes are in: kubernetes.*. Default none.
	Kubernetes *KubernetesConfig `json:"kubernetes,omitempty"`
	// Webhooks are whom webhook.* may call. Default nobody.
	Webhooks *Webhooks `json:"webhooks,omitempty"`
	// Alertmanager is where alertmanager sends alerts. Default nowhere.
	Alertmanager *Alertmanagers `json:"alertmanager,omitempty"`
	// Process is the executor process: command, slurm.drain and power.reset. Default none.
	Process *ExecutorClient `json:"process,omitempty"`
	// Node bounds node.* and eureka, which agents have to allow besides.
	Node NodeExecutor `json:"node,omitzero"`
}

func (c ResponseExecutors) validate(p *problems) {
	type validated interface{ Validate() error }
	check := func(field string, v validated) {
		p.within("responses.executors."+field, v.Validate())
	}
	if c.Kubernetes != nil {
		check("kubernetes", *c.Kubernetes)
	}
	if c.Webhooks != nil {
		check("webhooks", *c.Webhooks)
	}
	if c.Alertmanager != nil {
		check("alertmanager", *c.Alertmanager)
	}
	if c.Process != nil {
		check("process", *c.Process)
	}
	check("node", c.Node)
}

// NoNode is where a supervisor runs that is on none of the nodes.
const NoNode = "none"

// NodeOf is what SupervisorNodes says of a supervisor; empty: nothing.
func (c SupervisorResponses) NodeOf(id string) string {
	if at, ok := c.SupervisorNodes[id]; ok {
		return at
	}
	return c.SupervisorNodes["*"]
}

// DefaultResponses returns the defaults, which are those of the engine.
func DefaultResponses() SupervisorResponses {
	d := response.Default()
	return SupervisorResponses{
		Enabled: true, MaxNodes: d.MaxNodes, MaxPercent: d.MaxPercent, MaxPerDomain: d.MaxPerDomain, MaxPerPlane: d.MaxPerPlane, Rate: d.Rate, NotifyRate: d.NotifyRate,
		RateWindow: Duration(d.RateWindow), BreakerPercent: d.BreakerPercent, BreakerNodes: d.BreakerNodes, BreakerWindow: Duration(d.BreakerWindow),
		Grace: Duration(d.Grace), StormDelay: Duration(d.StormDelay), Cooldown: Duration(d.Cooldown), MaxEvidenceAge: Duration(d.MaxEvidenceAge),
		Approvals: d.Approvals, ApprovalTime: Duration(d.ApprovalTime), MaxActive: d.MaxActive, Keep: Duration(d.Keep), OptOutLabel: d.OptOutLabel,
		AuditLines: 100_000, AuditBytes: 64 << 20,
	}
}

// Limits are those of the engine, in a cluster with these failure domains.
func (c SupervisorResponses) Limits(domainLabels []string) response.Config {
	l := response.Default()
	l.MaxNodes, l.MaxPercent, l.MaxPerDomain, l.MaxPerPlane, l.DomainLabels = c.MaxNodes, c.MaxPercent, c.MaxPerDomain, c.MaxPerPlane, domainLabels
	l.Rate, l.NotifyRate, l.RateWindow = c.Rate, c.NotifyRate, c.RateWindow.D()
	l.BreakerPercent, l.BreakerNodes, l.BreakerWindow = c.BreakerPercent, c.BreakerNodes, c.BreakerWindow.D()
	l.Grace, l.StormDelay, l.Cooldown, l.MaxEvidenceAge = c.Grace.D(), c.StormDelay.D(), c.Cooldown.D(), c.MaxEvidenceAge.D()
	l.LookAgain = min(l.LookAgain, max(l.MaxEvidenceAge/3, time.Millisecond)) // more often than what is found out grows old
	l.Approvals, l.ApprovalTime, l.MaxActive, l.Keep, l.OptOutLabel = c.Approvals, c.ApprovalTime.D(), c.MaxActive, c.Keep.D(), c.OptOutLabel
	return l
}

// validate checks the limits, by the names that they have in the file.
func (c SupervisorResponses) validate(p *problems) {
	err := c.Limits(nil).Validate()
	if many, ok := errors.Unwrap(err).(interface{ Unwrap() []error }); ok {
		for _, e := range many.Unwrap() {
			text := []rune(e.Error())
			text[0] = unicode.ToLower(text[0])
			p.add(errors.New("responses." + string(text)))
		}
	} else {
		p.wrap("responses", err)
	}
	for _, id := range slices.Sorted(maps.Keys(c.SupervisorNodes)) {
		if id == "" || c.SupervisorNodes[id] == "" {
			p.bad("responses.supervisorNodes", fmt.Sprintf("%q: %q", id, c.SupervisorNodes[id]), `a supervisor's id or "*", and a node's id or "none"`)
		}
	}
	c.Executors.validate(p)
	if n := c.AuditLines; n < 1000 || n > 10_000_000 {
		p.bad("responses.auditLines", n, "1000 to 10000000")
	}
	if n := c.AuditBytes; n < 1<<20 || n > 1<<30 {
		p.bad("responses.auditBytes", n, "1 MiB to 1 GiB")
	}
}
