package netlab

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lofamo/lofamo/internal/cluster"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// Way is a direction of traffic through an interface, as its owner sees it.
type Way uint8

// The ways.
const (
	In Way = iota + 1
	Out
	Both
)

// String returns "in", "out" or "both ways".
func (w Way) String() string {
	switch w {
	case In:
		return "in"
	case Out:
		return "out"
	case Both:
		return "both ways"
	default:
		return fmt.Sprintf("Way(%d)", uint8(w))
	}
}

// receivers returns the ends of a cable at which packets of that way arrive.
func (w Way) receivers(c wire) ([]end, error) {
	switch w {
	case In:
		return []end{c.own}, nil
	case Out:
		return []end{c.far}, nil
	case Both:
		return []end{c.own, c.far}, nil
	default:
		return nil, fmt.Errorf("way %s: want in, out or both", w)
	}
}

// Cut makes an interface of a member lose everything, silently: its carrier stays.
func (n *Network) Cut(member, iface string, w Way) error {
	return n.impair([]plug{{member, iface}}, w, func(i *impairment) { i.cut = true })
}

// Lose makes an interface lose a share of its packets, in percent; 0 ends it.
func (n *Network) Lose(member, iface string, w Way, percent float64) error {
	share, err := thousandths(percent)
	if err != nil {
		return fmt.Errorf("lose packets of %s of %s: %w", iface, member, err)
	}
	return n.impair([]plug{{member, iface}}, w, func(i *impairment) { i.lose = share })
}

// Corrupt flips one bit in a share of the UDP datagrams of an interface, in percent; 0 ends it. As
// the interfaces leave checksums out, the datagrams reach their readers.
func (n *Network) Corrupt(member, iface string, w Way, percent float64) error {
	share, err := thousandths(percent)
	if err != nil {
		return fmt.Errorf("corrupt packets of %s of %s: %w", iface, member, err)
	}
	return n.impair([]plug{{member, iface}}, w, func(i *impairment) { i.corrupt = share })
}

func thousandths(percent float64) (int, error) {
	// Written so that NaN is refused too.
	if !(percent >= 0 && percent <= 100) {
		return 0, fmt.Errorf("given %v percent: want 0 to 100", percent)
	}
	if percent > 0 && percent < 0.1 {
		return 0, fmt.Errorf("given %v percent: want 0, or at least 0.1: the filter counts in thousandths", percent)
	}
	return int(math.Round(percent * 10)), nil
}

// Heal ends the faults of an interface's packets, both ways. A pulled cable stays pulled.
func (n *Network) Heal(member, iface string) error {
	return n.impair([]plug{{member, iface}}, Both, func(i *impairment) { *i = impairment{} })
}

// CutService cuts a node off every service network, both ways.
func (n *Network) CutService(node string) error { return n.CutServiceOneWay(node, Both) }

// CutServiceOneWay cuts a node's incoming or outgoing packets on the service networks.
func (n *Network) CutServiceOneWay(node string, w Way) error {
	return n.impair(n.servicePlugs(node), w, func(i *impairment) { i.cut = true })
}

// HealService ends the faults of a node's packets on the service networks.
func (n *Network) HealService(node string) error {
	return n.impair(n.servicePlugs(node), Both, func(i *impairment) { *i = impairment{} })
}

// Part parts members on the service networks: none of some hears any of others, nor the other way round.
// A second call comes in the place of the first where both name a member.
func (n *Network) Part(some, others []string) error {
	for _, side := range [][2][]string{{some, others}, {others, some}} {
		for _, iface := range n.ServiceInterfaces() {
			var senders []string
			for _, m := range side[1] {
				w, err := n.wireOf(plug{m, iface})
				if err != nil {
					return err
				}
				senders = append(senders, w.own.addr.Addr().String())
			}
			var ears []plug
			for _, m := range side[0] {
				ears = append(ears, plug{m, iface})
			}
			if err := n.impair(ears, In, func(i *impairment) { i.deaf = strings.Join(senders, ", ") }); err != nil {
				return err
			}
		}
	}
	return nil
}

// CutLink cuts a node's torus link, silently: its carrier stays. Out cuts frames that this node sends.
func (n *Network) CutLink(node string, d grid.Direction, w Way) error {
	return n.Cut(node, linkInterface(d), w)
}

// HealLink ends the faults of the packets of a node's torus link.
func (n *Network) HealLink(node string, d grid.Direction) error {
	return n.Heal(node, linkInterface(d))
}

// CutSupervisors cuts supervisors off every service network, both ways; all of them if none is named. They still reach
// each other.
func (n *Network) CutSupervisors(ids ...string) error {
	return n.impair(n.supervisorPlugs(ids), Both, func(i *impairment) { i.cut = true })
}

// HealSupervisors ends the faults of supervisors' packets on the service networks.
func (n *Network) HealSupervisors(ids ...string) error {
	return n.impair(n.supervisorPlugs(ids), Both, func(i *impairment) { *i = impairment{} })
}

// ServiceInterfaces lists the interfaces of a member on the service networks.
func (n *Network) ServiceInterfaces() []string {
	var out []string
	for k := range n.layout.shape.ServiceNetworks {
		out = append(out, serviceInterface(k))
	}
	return out
}

func (n *Network) servicePlugs(member string) []plug {
	var out []plug
	for _, iface := range n.ServiceInterfaces() {
		out = append(out, plug{member, iface})
	}
	return out
}

func (n *Network) supervisorPlugs(ids []string) []plug {
	if len(ids) == 0 {
		for i := range n.layout.shape.Supervisors {
			ids = append(ids, cluster.SupervisorID(i))
		}
	}
	var out []plug
	for _, id := range ids {
		out = append(out, n.servicePlugs(id)...)
	}
	return out
}

// wireOf finds the cable of an interface. A node may be named by its coordinates.
func (n *Network) wireOf(p plug) (wire, error) {
	if at, err := grid.ParseCoord(p.member); err == nil && n.layout.shape.Dims.Contains(at) {
		p.member = string(n.layout.nodes[n.layout.shape.Dims.Rank(at)])
	}
	if w, ok := n.layout.plugs[p]; ok {
		return w, nil
	}
	var has []string
	for other := range n.layout.plugs {
		if other.member == p.member {
			has = append(has, other.iface)
		}
	}
	if len(has) == 0 {
		return wire{}, fmt.Errorf("member %q: neither a supervisor nor a node of this %s network", p.member, n.layout.shape.Dims)
	}
	slices.Sort(has)
	return wire{}, fmt.Errorf("interface %q of %s: want one of %s", p.iface, p.member, strings.Join(has, ", "))
}

// impair changes the faults of interfaces. In each namespace, all changes take effect at the same moment.
func (n *Network) impair(plugs []plug, w Way, change func(*impairment)) error {
	var ends []end
	for _, p := range plugs {
		c, err := n.wireOf(p)
		if err != nil {
			return err
		}
		receivers, err := w.receivers(c)
		if err != nil {
			return err
		}
		ends = append(ends, receivers...)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.change(ends, change)
}

// change is the sole writer of the packet filters. n.mu is held.
func (n *Network) change(ends []end, change func(*impairment)) error {
	scripts := map[string]string{}
	for _, e := range ends {
		i := n.wrong[e]
		change(&i)
		n.wrong[e] = i
		scripts[e.space] += rules(e.dev, i)
	}
	g, ctx := errgroup.WithContext(context.Background())
	g.SetLimit(atOnce)
	for space, script := range scripts {
		g.Go(func() error { return nft(ctx, space, script) })
	}
	return g.Wait()
}

// CarrierDown pulls the cable of an interface at its other end: both lose their carrier.
func (n *Network) CarrierDown(member, iface string) error { return n.setCarrier(member, iface, false) }

// CarrierUp reconnects the cable.
func (n *Network) CarrierUp(member, iface string) error { return n.setCarrier(member, iface, true) }

func (n *Network) setCarrier(member, iface string, up bool) error {
	w, err := n.wireOf(plug{member, iface})
	if err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.setEnd(w.far, up)
}

// setEnd is the sole writer of the interfaces' states. n.mu is held.
func (n *Network) setEnd(e end, up bool) error {
	state := "down"
	if up {
		state = "up"
	}
	n.pulled[e] = !up
	return ip(context.Background(), e.space, []string{"link set " + e.dev + " " + state})
}

// InterfaceDown takes an interface of a member down at the member itself.
func (n *Network) InterfaceDown(member, iface string) error {
	return n.setInterface(member, iface, false)
}

// InterfaceUp sets it up again.
func (n *Network) InterfaceUp(member, iface string) error {
	return n.setInterface(member, iface, true)
}

func (n *Network) setInterface(member, iface string, up bool) error {
	w, err := n.wireOf(plug{member, iface})
	if err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.setEnd(w.own, up)
}

// TakeAddress takes the address of an interface away from a member.
func (n *Network) TakeAddress(member, iface string) error { return n.setAddress(member, iface, false) }

// GiveAddress gives it back.
func (n *Network) GiveAddress(member, iface string) error { return n.setAddress(member, iface, true) }

func (n *Network) setAddress(member, iface string, have bool) error {
	w, err := n.wireOf(plug{member, iface})
	if err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.setEndAddress(w.own, have)
}

// setEndAddress is the sole writer of the interfaces' addresses. n.mu is held.
func (n *Network) setEndAddress(e end, have bool) error {
	if n.bare[e] == !have {
		return nil
	}
	do := "del"
	if have {
		do = "add"
	}
	n.bare[e] = !have
	return ip(context.Background(), e.space, []string{fmt.Sprintf("addr %s %s dev %s", do, e.addr, e.dev)})
}

// Flap pulls the cable of an interface and reconnects it, the given number of times, one of each per period, or longer
// if that itself takes longer: each lasts at least half a period. It returns with the cable connected, when it is done
// or ctx ends.
func (n *Network) Flap(ctx context.Context, member, iface string, period time.Duration, times int) error {
	for range times {
		for _, set := range []func(string, string) error{n.CarrierDown, n.CarrierUp} {
			if err := set(member, iface); err != nil {
				return err
			}
			select {
			case <-ctx.Done():
				return errors.Join(ctx.Err(), n.CarrierUp(member, iface))
			case <-time.After(period / 2):
			}
		}
	}
	return nil
}

// HealNetwork undoes everything that was done to the network.
func (n *Network) HealNetwork() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	var errs []error
	for e, down := range n.pulled {
		if down {
			errs = append(errs, n.setEnd(e, true))
		}
	}
	for e, bare := range n.bare {
		if bare {
			errs = append(errs, n.setEndAddress(e, true))
		}
	}
	var ends []end
	for e, i := range n.wrong {
		if i != (impairment{}) {
			ends = append(ends, e)
		}
	}
	return errors.Join(append(errs, n.change(ends, func(i *impairment) { *i = impairment{} }))...)
}

// Traffic is the traffic of an interface since the network was made.
type Traffic struct {
	In, Out Count // packets that its owner received, and packets of its own that arrived at the other end
}

// Since returns the traffic after an earlier Traffic.
func (t Traffic) Since(before Traffic) Traffic {
	return Traffic{t.In.minus(before.In), t.Out.minus(before.Out)}
}

// Traffic counts the packets of an interface.
func (n *Network) Traffic(member, iface string) (Traffic, error) {
	w, err := n.wireOf(plug{member, iface})
	if err != nil {
		return Traffic{}, err
	}
	var t Traffic
	if t.In, err = count(w.own); err != nil {
		return Traffic{}, err
	}
	t.Out, err = count(w.far)
	return t, err
}

func count(e end) (Count, error) {
	b, err := inside(context.Background(), e.space, "", "-j", "list", "counters")
	if err != nil {
		return Count{}, err
	}
	all, err := readCounts(b)
	if err != nil {
		return Count{}, err
	}
	return all[chain(e.dev)], nil
}
