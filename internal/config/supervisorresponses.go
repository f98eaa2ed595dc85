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

// SupervisorResponses limits the supervisors' actions on faults, above any policy; without policies they do nothing.
type SupervisorResponses struct {
	// Enabled: the supervisors decide about responses. All replicas alike. Default true.
	Enabled bool `json:"enabled"`
	// MaxNodes is the maximum number of nodes under response at once: nodes that a response took out of use, wholly or
	// in part, and has not yet returned to use. 1 to 1048576. Default 50.
	MaxNodes int `json:"maxNodes"`
	// MaxPercent is the same limit as a share of all nodes, rounded down, but at least one node. 1 to 100. Default 5.
	MaxPercent int `json:"maxPercent"`
	// MaxPerDomain is the same limit among nodes that share a value of one of the domain labels. 1 to 1048576. Default
	// 2.
	MaxPerDomain int `json:"maxPerDomain"`
	// MaxPerPlane is the same limit among the nodes of a plane of the torus, in each dimension. 1 to 1048576. Default
	// 4.
	MaxPerPlane int `json:"maxPerPlane"`
	// Rate is the maximum number of steps that begin within RateWindow, without notifications. 1 to 1048576. Default
	// 30.
	Rate int `json:"rate"`
	// NotifyRate is the maximum number of notifications within RateWindow. 1 to 1048576. Default 10000.
	NotifyRate int `json:"notifyRate"`
	// RateWindow is the window for Rate and NotifyRate, 1s or more. Default 1h.
	RateWindow Duration `json:"rateWindow"`
	// BreakerPercent is the share of nodes that must go bad within BreakerWindow to open the circuit breaker, which a
	// person closes. 1 to 50. Default 20.
	BreakerPercent int `json:"breakerPercent"`
	// BreakerNodes is the minimum number of such nodes. 1 to 1048576. Default 3.
	BreakerNodes int `json:"breakerNodes"`
	// BreakerWindow is the window for both, 1s or more. Default 5m.
	BreakerWindow Duration `json:"breakerWindow"`
	// Grace is the time for which a new leader starts no responses, 0s or more. Default 30s.
	Grace Duration `json:"grace"`
	// StormDelay is the minimum age of a fault before any action but a notification, 0s or more. Default 10s.
	StormDelay Duration `json:"stormDelay"`
	// Cooldown is the minimum time between two responses on one node, 0s or more. It does not count notifications. Default 30m.
	Cooldown Duration `json:"cooldown"`
	// MaxEvidenceAge is the maximum age of the evidence of a fault, 1ms or more. Default 30s.
	MaxEvidenceAge Duration `json:"maxEvidenceAge"`
	// FenceMargin is added to the time after which a node that fences itself counts as down. It covers the time in which halves
	// find out that a link or the service network no longer works. 30s suffice for all presets. With several supervisors, the
	// effective margin is at least 14s + 12/5 of digestPeriod + linkHoldOff. 1s or more. Default 30s.
	FenceMargin Duration `json:"fenceMargin"`
	// Approvals is the number of people who must approve actions that may end work on a node, besides those that a
	// policy requires. 0 to 2. Default 0.
	Approvals int `json:"approvals"`
	// ApprovalTime is the time to wait for approvals, 1s or more. Default 4h.
	ApprovalTime Duration `json:"approvalTime"`
	// MaxActive is the maximum number of running and waiting responses. 1 to 1048576. Default 2000.
	MaxActive int `json:"maxActive"`
	// Keep is the retention time of a closed response's record, at least as long as RateWindow, Cooldown and
	// BreakerWindow. Default 168h. Of responses that did nothing, or only notified, the newest 20,000 are kept.
	Keep Duration `json:"keep"`
	// OptOutLabel is the label whose value "true" keeps all but notifications from a node. Default
	// lofamo.io/no-response.
	OptOutLabel string `json:"optOutLabel"`
	// SupervisorNodes maps a supervisor's id to the node on which it runs, so that no response takes out more
	// supervisors than their quorum can lose. A value is a node of the topology, or "none" for a machine that is no
	// node. "*" stands for all supervisors that are not named. A supervisor without a value is located by its report
	// and grpc addresses among those of the nodes' services; if they match none, it may be on any node. All replicas
	// alike. Default none.
	SupervisorNodes map[string]string `json:"supervisorNodes,omitempty"`
	// AuditLines is the maximum number of audit lines in the store: export the audit to keep all of it there. 1000 to
	// 10000000. Default 100000.
	AuditLines int64 `json:"auditLines"`
	// AuditBytes is the maximum size of these lines. 1 MiB to 1 GiB. Default 64 MiB.
	AuditBytes int64 `json:"auditBytes"`
	// Executors carry out the steps of policies. A step without an executor fails with an error. All replicas alike.
	Executors ResponseExecutors `json:"executors,omitzero"`
}

// ResponseExecutors configures the supervisors' own executors, beside the actions that agents allow
// (docs/responses-node.md).
type ResponseExecutors struct {
	// Kubernetes is the cluster that the nodes are in: kubernetes.*. Default none.
	Kubernetes *KubernetesConfig `json:"kubernetes,omitempty"`
	// Webhooks are the targets of webhook.*. Default none.
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

// NoNode is the value for a supervisor that runs on no node.
const NoNode = "none"

// NodeOf returns the node of a supervisor in SupervisorNodes, or "" if there is none.
func (c SupervisorResponses) NodeOf(id string) string {
	if at, ok := c.SupervisorNodes[id]; ok {
		return at
	}
	return c.SupervisorNodes["*"]
}

// DefaultResponses returns the engine's defaults.
func DefaultResponses() SupervisorResponses {
	d := response.Default()
	return SupervisorResponses{
		Enabled: true, MaxNodes: d.MaxNodes, MaxPercent: d.MaxPercent, MaxPerDomain: d.MaxPerDomain, MaxPerPlane: d.MaxPerPlane, Rate: d.Rate,
		NotifyRate: d.NotifyRate,
		RateWindow: Duration(d.RateWindow), BreakerPercent: d.BreakerPercent, BreakerNodes: d.BreakerNodes,
		BreakerWindow: Duration(d.BreakerWindow),
		Grace:         Duration(d.Grace), StormDelay: Duration(d.StormDelay), Cooldown: Duration(d.Cooldown),
		MaxEvidenceAge: Duration(d.MaxEvidenceAge), FenceMargin: Duration(d.FenceMargin),
		Approvals: d.Approvals, ApprovalTime: Duration(d.ApprovalTime), MaxActive: d.MaxActive, Keep: Duration(d.Keep),
		OptOutLabel: d.OptOutLabel,
		AuditLines:  100_000, AuditBytes: 64 << 20,
	}
}

// Limits returns the engine's limits, in a cluster with these failure domains.
func (c SupervisorResponses) Limits(domainLabels []string) response.Config {
	l := response.Default()
	l.MaxNodes, l.MaxPercent, l.MaxPerDomain, l.MaxPerPlane, l.DomainLabels = c.MaxNodes, c.MaxPercent, c.MaxPerDomain, c.MaxPerPlane,
		domainLabels
	l.Rate, l.NotifyRate, l.RateWindow = c.Rate, c.NotifyRate, c.RateWindow.D()
	l.BreakerPercent, l.BreakerNodes, l.BreakerWindow = c.BreakerPercent, c.BreakerNodes, c.BreakerWindow.D()
	l.Grace, l.StormDelay, l.Cooldown, l.MaxEvidenceAge = c.Grace.D(), c.StormDelay.D(), c.Cooldown.D(), c.MaxEvidenceAge.D()
	l.LookAgain = min(l.LookAgain, max(l.MaxEvidenceAge/3, time.Millisecond)) // check again before findings expire
	l.FenceMargin = c.FenceMargin.D()
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
			p.add(errors.New(ShortTimes("responses." + string(text))))
		}
	} else {
		p.wrap("responses", err)
	}
	for _, id := range slices.Sorted(maps.Keys(c.SupervisorNodes)) {
		if id == "" || c.SupervisorNodes[id] == "" {
			p.bad("responses.supervisorNodes", fmt.Sprintf("%q: %q", id, c.SupervisorNodes[id]),
				`a supervisor's id or "*", and a node's id or "none"`)
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
