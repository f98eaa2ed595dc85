package respond

import (
	"slices"
	"sync"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
)

// sourceNeeds are the policies in force that require outside conditions, and the warnings that were logged about them. It is safe for
// concurrent use.
type sourceNeeds struct {
	mu       sync.Mutex
	policies []*response.Policy // with outside conditions
	logged   map[string]bool    // by policy and warning; only those that stand
}

func (n *sourceNeeds) set(all []*response.Policy) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.policies = nil
	for _, p := range all {
		if len(p.Outside) > 0 {
			n.policies = append(n.policies, p)
		}
	}
}

// WarnSources logs each policy in force that starts no response because a source of its outside conditions is not configured. It logs a
// policy again only after its warning has ended.
func (r *Responder) WarnSources() {
	n := &r.sources
	n.mu.Lock()
	defer n.mu.Unlock()
	before := n.logged
	n.logged = map[string]bool{}
	for _, p := range n.policies {
		for _, w := range p.Warnings(r.cfg.Unconfigured) {
			key := p.Name + "\x00" + w
			if n.logged[key] = true; !before[key] {
				r.cfg.Logger.Warn("policy without a source of its outside conditions", "policy", p.Name, "warning", w)
			}
		}
	}
}

// SourceNotes returns, for the explanation of a fault, the policies that could respond to it if the sources of their outside conditions
// were configured.
func (r *Responder) SourceNotes(c fault.Component, s fault.State) []string {
	n := &r.sources
	n.mu.Lock()
	policies := slices.Clone(n.policies)
	n.mu.Unlock()
	var out []string
	for _, p := range policies {
		if p.Groups || !p.Match.May(c, s) {
			continue
		}
		for _, w := range p.Warnings(r.cfg.Unconfigured) {
			out = append(out, "policy "+p.Name+": "+w)
		}
	}
	return out
}
