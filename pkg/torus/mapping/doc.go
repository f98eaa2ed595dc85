// Package mapping is the mapping by delegation at the mapper (seed 003 §5.2.3.2, Figure 18). It explores a region of
// the torus from its own position, from neighbour to neighbour, and returns which nodes it reached, whether their
// host halves answered, and which of their links work.
//
//	mapper ──ask, by a path──► node ──answer: "I live, these links work" ──back by the path──► mapper
//	                             └──► its host half's mailbox ──echo──► "and so does my host half" ──►
//
// The mapper asks a node only when a node that has answered says that it hears it, and by way of that one. So a probe
// always goes over links that worked a moment ago, nothing is flooded, and silent nodes cost nothing: a region of
// dead nodes costs one look at its border. The path stands in the probe. The nodes in between keep no state, and a
// half of an earlier version forwards nothing.
//
// Findings are no verdicts. Good means only that a node answered. A node that did not is Unknown, with its
// neighbours' reports on the links to that node. A host half is Bad when its own DNP half's watchdog says so; a link
// is Bad when an end that has answered says so.
//
// It is pure: it sends nothing and reads no clock. The DNP half (internal/agent/dnp/dnpcore) gives it its frames. The
// supervisors assign the regions and use the findings (pkg/torus/chanmask, internal/supervisor/orders).
package mapping
