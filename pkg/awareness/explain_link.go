package awareness

import "github.com/lofamo/lofamo/pkg/fault"

func (x *explainer) ofLink() {
	d, _ := x.c.LinkDirection()
	p := x.n.peers[d.Index()]
	if p == nil {
		x.say("the node at the other end belongs to another region, and is not known here")
		return
	}
	x.ends()
	x.measured()
	x.word("the near end", x.n, x.c)
	x.word("the far end", p, fault.Link(d.Opposite()))
	if near, far := badLinks(x.n), badLinks(p); x.n.cut(x.c) && near != far && max(near, far) > 1 {
		x.say("%d links of %s have failed, and %d of %s: suspect a port of %s before the cable",
			max(near, far), worse(x.n, p, near > far).id, min(near, far), worse(x.n, p, near < far).id, worse(x.n, p, near > far).id)
	}
	if f := p.failure(fault.HalfDNP); f.on {
		x.say("the DNP of %s is dead, which explains the silence: the link is not blamed", p.id)
	} else if r := &p.rounds[0]; r.open && !p.answered(0) && !x.n.cut(x.c) {
		x.say("%s was challenged, and has not answered: until its verdict the link is not blamed", p.id)
	}
}

func worse(n, p *node, first bool) *node {
	if first {
		return n
	}
	return p
}

// ends reports whether the node itself is unable to make statements.
func (x *explainer) ends() {
	switch {
	case x.n.dead.on:
		x.say("the whole node is dead: evidence on its parts is old")
	case x.n.inferred:
		x.say("the whole node is inferred dead")
	case x.n.failure(fault.HalfHost).on:
		x.say("its host is dead")
	case x.n.failure(fault.HalfDNP).on:
		x.say("its DNP is dead")
	}
}

// word lists the statements of a node's halves about one of its components.
func (x *explainer) word(who string, n *node, c fault.Component) {
	best, by := x.ownWord(n, c, x.now)
	for _, h := range halves {
		r := x.said(n, h, c)
		if r == nil {
			continue
		}
		weight := "which counts"
		_, link := c.LinkDirection()
		switch {
		case x.rule == ruleLastWord && h == fault.HalfHost:
			weight = "which is its last known statement"
		case !x.states(n, h, x.now):
			weight = "which no longer counts: its last message came " + x.ago(x.clock.time(n.voice(h).reported))
		case (link || ofDNP(c)) && n.failure(fault.HalfDNP).on:
			weight = "which does not count while its DNP is dead"
		case x.rule == ruleDescribed || x.rule == ruleDescribedOne:
			weight = "which counts less than the descriptors, since its host is not heard"
		case best != nil && by.Half != h:
			weight = "which counts less than the other half's later statement"
		}
		x.say("%s, %s/%s, has said %s (%s) %s, %s", who, n.id, h, r.state, r.kind, x.lasting(r.began), weight)
	}
	if best == nil && x.rule != ruleLastWord {
		x.say("%s, %s, has no valid statement", who, n.id)
	}
}
