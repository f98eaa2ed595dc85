package controller

import (
	"fmt"
	"strings"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
)

// conditions returns the outside conditions of a node (spec.outside in policies). Only a plain answer makes NodePoweredOff
// True or False: silence never means that a node is off.
func (e *entry) conditions() []response.OutsideCondition {
	off, silent, critical, feed := "Unknown", "False", "Unknown", "False"
	switch e.Finding {
	case Off:
		off = "True"
	case On:
		off = "False"
	case Silent:
		silent = "True"
	default:
	}
	switch e.Health {
	case Critical:
		critical = "True"
	case Good, Warning:
		critical = "False"
	default:
	}
	if e.feed {
		feed = "True"
	}
	return []response.OutsideCondition{
		{Type: response.NodePoweredOff, Status: off, Since: e.Since, Beat: e.At},
		{Type: response.ControllerSilent, Status: silent, Since: e.Since, Beat: e.At},
		{Type: response.HardwareCritical, Status: critical, Since: e.HealthSince, Beat: e.At},
		{Type: response.PowerFeedSuspected, Status: feed, Since: e.feedSince, Beat: e.At},
	}
}

// Words returns the reading in one line: the finding with its age, the health if it is bad, and the detail.
func (r Reading) Words(now time.Time) string {
	age := func(at time.Time) time.Duration { return max(0, now.Sub(at)).Round(time.Second) }
	s := fmt.Sprintf("%s for %s, read %s ago", r.Finding, age(r.Since), age(r.At))
	if r.Health > Good {
		s += ", hardware " + r.Health.String()
	}
	if r.Detail != "" {
		s += ": " + r.Detail
	}
	if !r.Finding.Plain() && r.Last != 0 {
		s += fmt.Sprintf(" (%s when it last answered, %s ago)", r.Last, age(r.LastAt))
	}
	return s
}

// Notes returns the last answer of a node's controller in words for people, with the hint at a power feed. domain is the node's power
// domain ("power=b"), or empty, and others are the other nodes in it.
func (b *Book) Notes(now time.Time, node fault.NodeID, domain string, others []fault.NodeID) []string {
	e := b.entries[node]
	if e == nil {
		return nil
	}
	out := []string{"outside evidence, not a verdict: management controller: " + e.Words(now)}
	if hint := b.hint(e, domain, others); hint != "" {
		out = append(out, hint)
	}
	if len(e.Sensors) > 0 {
		out = append(out, "management controller, sensors: "+strings.Join(e.Sensors, "; "))
	}
	for _, line := range e.Log {
		out = append(out, "management controller, event log (its own clock): "+line)
	}
	return out
}

// hint returns the hint at a power feed. It is stronger if other nodes of the same power domain and their controllers are silent too.
func (b *Book) hint(e *entry, domain string, others []fault.NodeID) string {
	if !e.feed {
		return ""
	}
	read, alike := 1, 1
	for _, id := range others {
		if o := b.entries[id]; o != nil {
			read++
			if o.feed {
				alike++
			}
		}
	}
	if domain == "" || alike == 1 {
		return "hint, not a verdict: the node and its controller are both silent: check its power feed, and the network of both"
	}
	return fmt.Sprintf("strong hint, not a verdict: %d of %d nodes of %s are silent together with their controllers: "+
		"check the power feed of %s", alike, read, domain, domain)
}
