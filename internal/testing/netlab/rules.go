package netlab

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// impairment is the set of faults for packets that arrive at one end of a cable. The zero impairment is none.
type impairment struct {
	cut     bool
	deaf    string // drops packets from these senders: addresses in the filter's syntax, such as "10.0.0.1, 10.0.0.2"
	lose    int    // of a thousand
	corrupt int    // of a thousand UDP datagrams, one bit flipped
}

const (
	// table holds everything in a namespace.
	table    = "netdev lofamo"
	thousand = 1000
	// headerUDP is the length of a UDP header in bytes: offsets from @th include it.
	headerUDP = 8
)

// corruptBytes are the places of a datagram's payload where a bit is flipped, with equal probability; a datagram too
// short for one place gets a later one. The filter reaches only up to byte 255 of a packet's part.
var corruptBytes = [...]int{180, 90, 30, 2}

// chain returns the name for an interface in the filter's language, which knows neither + nor -.
func chain(dev string) string { return strings.NewReplacer("+", "_plus", "-", "_").Replace(dev) }

// setup returns the script that begins to count at interfaces.
func setup(devs []string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "table %s {\n", table)
	for _, dev := range devs {
		c := chain(dev)
		for _, counter := range []string{"passed", "lost", "damaged"} {
			fmt.Fprintf(&b, "counter %s_%s {}\n", counter, c)
		}
		fmt.Fprintf(&b, "chain flip_%s {\n", c)
		for i, at := range corruptBytes {
			bits := (headerUDP + at) * 8
			fmt.Fprintf(&b, "%s@th,%d,8 set @th,%d,8 ^ 0x10 counter name damaged_%s return\n", oneIn(len(corruptBytes)-i), bits, bits, c)
		}
		fmt.Fprintf(&b, "}\nchain in_%s { type filter hook ingress device %q priority 0; policy accept; }\n", c, dev)
	}
	b.WriteString("}\n")
	for _, dev := range devs {
		b.WriteString(rules(dev, impairment{}))
	}
	return b.String()
}

// rules returns the script that replaces an interface's impairment. It takes effect at once and keeps the counts.
func rules(dev string, i impairment) string {
	c := chain(dev)
	lines := []string{fmt.Sprintf("flush chain %s in_%s", table, c)}
	add := func(format string, args ...any) {
		lines = append(lines, fmt.Sprintf("add rule %s in_%s ", table, c)+fmt.Sprintf(format, args...))
	}
	switch {
	case i.cut:
		add("counter name lost_%s drop", c)
	case i.lose > 0:
		add("%scounter name lost_%s drop", share(i.lose), c)
	}
	if i.deaf != "" {
		add("ip saddr { %s } counter name lost_%s drop", i.deaf, c)
	}
	if i.corrupt > 0 {
		add("meta l4proto udp %sjump flip_%s", share(i.corrupt), c)
	}
	// Packets without IP, such as ARP, are not counted: they also flow on an idle network.
	add("meta protocol ip counter name passed_%s", c)
	return strings.Join(lines, "\n") + "\n"
}

// share matches n of a thousand packets; all of them need no match.
func share(n int) string {
	if n >= thousand {
		return ""
	}
	return fmt.Sprintf("numgen random mod %d < %d ", thousand, n)
}

func oneIn(n int) string {
	if n == 1 {
		return ""
	}
	return fmt.Sprintf("numgen random mod %d < 1 ", n)
}

// Count has the packets that arrived at one end of a cable.
type Count struct {
	Passed, Lost, Damaged uint64 // IP packets
	Bytes                 uint64 // of the packets that passed
}

func (c Count) minus(before Count) Count {
	return Count{c.Passed - before.Passed, c.Lost - before.Lost, c.Damaged - before.Damaged, c.Bytes - before.Bytes}
}

// readCounts reads the filter's own account (libnftables-json(5)), by chain.
func readCounts(b []byte) (map[string]Count, error) {
	var doc struct {
		Nftables []struct {
			Counter *struct {
				Name           string
				Packets, Bytes uint64
			}
		}
	}
	if err := json.Unmarshal(b, &doc); err != nil {
		return nil, fmt.Errorf("counters of the packet filter: %w", err)
	}
	out := map[string]Count{}
	for _, o := range doc.Nftables {
		if o.Counter == nil {
			continue
		}
		kind, c, _ := strings.Cut(o.Counter.Name, "_")
		n := out[c]
		switch kind {
		case "passed":
			n.Passed, n.Bytes = o.Counter.Packets, o.Counter.Bytes
		case "lost":
			n.Lost = o.Counter.Packets
		case "damaged":
			n.Damaged = o.Counter.Packets
		}
		out[c] = n
	}
	if len(out) == 0 {
		return nil, errors.New("counters of the packet filter: none")
	}
	return out, nil
}
