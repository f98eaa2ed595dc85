package gossip

import "net/netip"

// Refuse shuts out exactly the members of these names from now on: it ignores their announcements and drops packets
// from the addresses at which they were members, until another member has the address. All members share one key, so
// only a new key shuts out a member that takes another name and address.
func (n *Net) Refuse(names []string) {
	refused := make(map[string]bool)
	for _, name := range names {
		refused[name] = true
	}
	n.membersMu.Lock()
	defer n.membersMu.Unlock()
	n.refused.Store(&refused)
	n.refuseAddresses()
}

// refuseAddresses brings the refused addresses up to date. It runs under membersMu.
func (n *Net) refuseAddresses() {
	addrs := make(map[netip.AddrPort]string)
	if old := n.transport.refusedFrom.Load(); old != nil {
		for at, name := range *old { // a member that was shut out earlier is no longer a member
			if n.refuses(name) {
				addrs[at] = name
			}
		}
	}
	for _, m := range n.members {
		if n.refuses(m.Name) {
			addrs[m.Addr] = m.Name
		}
	}
	for _, m := range n.members {
		if !n.refuses(m.Name) {
			delete(addrs, m.Addr)
		}
	}
	n.transport.refusedFrom.Store(&addrs)
}

func (n *Net) refuses(name string) bool {
	names := n.refused.Load()
	return names != nil && (*names)[name]
}
