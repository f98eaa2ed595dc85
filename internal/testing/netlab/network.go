package netlab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lofamo/lofamo/internal/cluster"
)

const (
	// toolTimeout bounds one run of ip or nft.
	toolTimeout = time.Minute
	// atOnce is the maximum number of commands that run at a time.
	atOnce = 4
)

// Network is a network of namespaces, with or without a cluster in it. Its methods are safe for
// concurrent use.
type Network struct {
	layout *layout
	claim  *claim

	mu     sync.Mutex         // guards the fields below and orders changes
	wrong  map[end]impairment // present faults, by receiving end
	pulled map[end]bool       // ends that were set down, so that the other one lost its carrier
	bare   map[end]bool       // ends that have lost their address
}

// Connect makes a network, after it has removed the leftovers of dead processes. The caller closes it.
func Connect(ctx context.Context, s Shape) (*Network, error) {
	if err := s.complete(); err != nil {
		return nil, fmt.Errorf("make a network of namespaces: %w", err)
	}
	if missing := Missing(); missing != "" {
		return nil, fmt.Errorf("make a network of namespaces: missing: %s", missing)
	}
	if err := sweep(ctx); err != nil {
		return nil, err
	}
	c, err := claimSlot()
	if err != nil {
		return nil, err
	}
	n := &Network{
		layout: plan(s, c.prefix(), c.slot), claim: c,
		wrong: map[end]impairment{}, pulled: map[end]bool{}, bare: map[end]bool{},
	}
	if err := n.build(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("make a network of namespaces: %w", err), n.Close())
	}
	return n, nil
}

// Close ends every process in the network's namespaces and removes these.
func (n *Network) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*toolTimeout)
	defer cancel()
	err := remove(ctx, n.claim.prefix())
	n.claim.release()
	return err
}

// directory returns the directory of a cluster's files on this network: sweep knows it by its name.
func (n *Network) directory() string {
	return directory(strconv.Itoa(os.Getpid()), n.claim.slot)
}

// Addresses returns the listen addresses of a cluster's members on this network.
func (n *Network) Addresses() cluster.Addresses { return n.layout.addresses }

// Command makes argv run in the namespace of a member. See cluster.Options.
func (n *Network) Command(member string, argv []string) []string {
	ip, err := toolPath("ip")
	if err != nil {
		ip = "ip" // its absence shows when it is run
	}
	return append([]string{ip, "netns", "exec", n.layout.space(member)}, argv...)
}

// Namespace returns the name of the network namespace of a member.
func (n *Network) Namespace(member string) string { return n.layout.space(member) }

// build makes everything in the layout.
func (n *Network) build(ctx context.Context) error {
	var first []string
	for _, s := range n.layout.spaces {
		first = append(first, "netns add "+s)
	}
	for _, c := range n.layout.cables {
		first = append(first, fmt.Sprintf("link add dev %s%s type veth peer name %s netns %s", c.own.dev, inSpace(c.own.space), c.far.dev,
			c.far.space))
	}
	if err := ip(ctx, "", first); err != nil {
		return err
	}
	devs := map[string][]end{}
	for _, c := range n.layout.cables {
		for _, e := range []end{c.own, c.far} {
			devs[e.space] = append(devs[e.space], e)
		}
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(atOnce)
	for space, ends := range devs {
		g.Go(func() error {
			if err := ip(ctx, space, n.furnish(space, ends)); err != nil || space == "" {
				return err
			}
			var names []string
			for _, e := range ends {
				names = append(names, e.dev)
			}
			return nft(ctx, space, setup(names))
		})
	}
	return g.Wait()
}

func inSpace(space string) string {
	if space == "" {
		return ""
	}
	return " netns " + space
}

// furnish lists the commands inside one namespace.
func (n *Network) furnish(space string, ends []end) []string {
	var out []string
	if space != "" {
		out = append(out, "link set lo up")
	}
	if space == n.layout.space(hub) {
		for _, b := range n.layout.bridges {
			out = append(out, "link add "+b+" type bridge mcast_snooping 0", "link set "+b+" addrgenmode none", "link set "+b+" up")
		}
	}
	for _, e := range ends {
		// Without an IPv6 address the interface sends no packets by itself; bridges without snooping do not either.
		out = append(out, "link set "+e.dev+" addrgenmode none")
		if e.bridge != "" {
			out = append(out, "link set "+e.dev+" master "+e.bridge)
		}
		if e.addr.IsValid() {
			out = append(out, fmt.Sprintf("addr add %s dev %s", e.addr, e.dev))
		}
		out = append(out, "link set "+e.dev+" up")
	}
	return out
}

// ip carries out lines of ip's own language in a namespace, stopping at the first that fails.
func ip(ctx context.Context, space string, lines []string) error {
	args := []string{"-batch", "-"}
	if space != "" {
		args = append([]string{"-n", space}, args...)
	}
	_, err := tool(ctx, strings.Join(lines, "\n")+"\n", "ip", args...)
	return err
}

// nft applies a script of the packet filter in a namespace, all of the script or none.
func nft(ctx context.Context, space, script string) error {
	_, err := inside(ctx, space, script, "-f", "-")
	return err
}

// inside runs nft in a namespace.
func inside(ctx context.Context, space, input string, args ...string) ([]byte, error) {
	path, err := toolPath("nft")
	if err != nil {
		return nil, err
	}
	return tool(ctx, input, "ip", append([]string{"netns", "exec", space, path}, args...)...)
}

func tool(ctx context.Context, input, name string, args ...string) ([]byte, error) {
	path, err := toolPath(name)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, toolTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Stdin = strings.NewReader(input)
	cmd.WaitDelay = time.Second
	var out, complaint bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaint
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(complaint.String()))
	}
	return out.Bytes(), nil
}
