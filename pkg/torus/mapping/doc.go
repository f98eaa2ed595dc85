// Package mapping is mapping by delegation at the node that is asked (seed 003 §5.2.3.2, Figure 18): it goes through a region of the
// torus from where it stands, from neighbour to neighbour, and says which nodes it reached, whether their host halves answered, and which
// of their links work.
//
//	mapper ──ask, by a path──► node ──answer: "I live, these links work" ──back by the path──► mapper
//	                             └──► its host half's mailbox ──echo──► "and so does my host half" ──►
//
// A node is asked only when one that has answered says that it hears it, and by way of that one. So a probe always goes over links that
// were found to work a moment ago, nothing is flooded, and what nobody hears costs nothing: a region of dead nodes is one look at
// its border. The path stands in the probe; those in between keep nothing, and a half of an earlier version passes nothing on.
//
// What is found is no verdict. Good is only what answered. A node that did not is Unknown, with what its neighbours say of the links
// to it. A host half is Bad when its own DNP half's watchdog says so, a link when an end of it says so that has answered.
//
// It is pure: it sends nothing and reads no clock. The DNP half (internal/agent/dnp/dnpcore) gives it its frames; who maps what, and what
// becomes of it, is the supervisors' (pkg/torus/chanmask, internal/supervisor/mapper).
package mapping
