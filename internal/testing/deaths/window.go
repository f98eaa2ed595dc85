package deaths

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"time"
)

// Nodes with two kernels are two machines: the host runs the host half, and the card the DNP half. The network of the service is the
// hosts', that of the torus links the cards', and each node has one more for the window between its two halves.

// portWindow is the port of both ends of a window. All nodes have the same addresses there, because the networks are apart.
const portWindow = 7960

// The halves, as the programs and the configuration call them.
const (
	hostHalf = "host"
	dnpHalf  = "dnp"
)

// windowAddresses are the addresses of the halves' ends of a window.
var windowAddresses = map[string]string{hostHalf: "192.0.2.1", dnpHalf: "192.0.2.2"}

func otherHalf(half string) string {
	if half == hostHalf {
		return dnpHalf
	}
	return hostHalf
}

// torusNetwork is the network of the cards' links in a ring whose service network has this number, and windowNetwork that of a node's
// window.
func torusNetwork(service int) int     { return service + 10000 }
func windowNetwork(service, i int) int { return torusNetwork(service) + 1 + i }

// windowDevice is the network card of a half's machine towards the other half.
func windowDevice(service, i int, half string) []string {
	end := 1
	if half == dnpHalf {
		end = 2
	}
	return []string{"-netdev", fmt.Sprintf("socket,id=window,mcast=230.0.0.1:%d,localaddr=127.0.0.1", windowNetwork(service, i)),
		"-device", fmt.Sprintf("virtio-net-pci,netdev=window,mac=52:54:00:00:09:%02d", end)}
}

// windowStart is the part of a start script that brings a half's end of the window up.
func windowStart(half string) string {
	return fmt.Sprintf("ip addr add %s/24 dev eth1; ip link set eth1 up; half='--half %s'", windowAddresses[half], half)
}

// divide changes the configuration of a node with one kernel into that of one half, which has a kernel of its own, as docs/install.md says.
func divide(root string, cfg map[string]any, half string) error {
	end := func(half string) string { return fmt.Sprintf("%s:%d", windowAddresses[half], portWindow) }
	cfg["window"] = map[string]any{"listen": end(half), "peer": end(otherHalf(half))}
	tls, ok := cfg["tls"].(map[string]any)
	if !ok {
		return errors.New("the configuration of a node has no keys")
	}
	var errs []error
	for _, kind := range []string{"Cert", "Key"} {
		key := otherHalf(half) + kind
		path, _ := tls[key].(string)
		delete(tls, key)
		errs = append(errs, os.Remove(filepath.Join(root, "pki", filepath.Base(path))))
	}
	return errors.Join(errs...)
}

// pinged reads what ping prints at its end.
var pinged = regexp.MustCompile(`^round-trip min/avg/max = [0-9.]+/[0-9.]+/([0-9.]+) ms`)

// roundTrip measures the longest way of ten packets through the window of the first node and back, between the kernels.
func (r *ring) roundTrip(ctx context.Context) (time.Duration, error) {
	host := r.nodes[0]
	mark := host.console.mark()
	if err := host.typeIn("ping -q -c 10 " + windowAddresses[dnpHalf]); err != nil {
		return 0, err
	}
	line, err := host.await(ctx, mark, verdictBound, pinged.String())
	if err != nil {
		return 0, err
	}
	ms, err := strconv.ParseFloat(pinged.FindStringSubmatch(line.of)[1], 64)
	return time.Duration(ms * float64(time.Millisecond)), err
}

// cutHold is the time for which a window stays cut after the verdict, for false ones.
const cutHold = 5 * time.Second

// cutWindow cuts or joins the window of the node, at both ends.
func (p *player) cutWindow(ctx context.Context, cut bool) error {
	command, done := "modprobe sch_netem && /bin/tc qdisc add dev eth1 root netem loss 100% && say cut", "^VM .* cut"
	if !cut {
		command, done = "/bin/tc qdisc del dev eth1 root && say joined", "^VM .* joined"
	}
	machines := p.ring.of(p.step.Node, onBoth)
	marks := make([]int, len(machines))
	for i, m := range machines {
		if p.step.Kind.how == byPulledCable {
			if err := m.qmp.do("set_link", map[string]any{"name": "window", "up": !cut}); err != nil {
				return err
			}
			continue
		}
		marks[i] = m.console.mark()
		if err := m.typeIn(command); err != nil {
			return err
		}
	}
	if p.step.Kind.how == byPulledCable {
		return nil
	}
	for i, m := range machines {
		if _, err := m.await(ctx, marks[i], verdictBound, done); err != nil {
			return err
		}
	}
	return nil
}
