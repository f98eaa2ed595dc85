// Package netlab is a local cluster on its own network: every node and every supervisor in a network namespace, with
// real interfaces and real cables between them, for tests that cut networks, lose or damage packets, or pull cables.
//
//	        tests ──┐
//	  sup-0  sup-1  sup-2          sup0   bridge: etcd, gRPC, the tests' own access
//	    │ │    │ │    │ │
//	════╪═══════╪══════╪════       svc0   bridge: the service network
//	════╪═══════╪══════╪════       svc1   bridge: a second, disjoint one if wanted
//	    │       │      │
//	  n0-0-0  n1-0-0  …            tx+ tx- … tz-: one cable to each neighbour, no bridge between
//
// A network fault happens where packets arrive: silently, by a packet filter on the receiving end of the cable, so that
// the sender does not notice; or by pulling the cable, so that both ends lose their carrier. The same filter counts
// passing packets.
//
// It needs root, iproute2 and nftables; Missing names missing requirements. It makes no cluster and checks no results:
// internal/cluster and internal/testing/lab do. All its objects have the process' id in their names, and Close removes them;
// the next Start removes those of a killed process.
package netlab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lofamo/lofamo/internal/cluster"
	"github.com/lofamo/lofamo/internal/testing/lab"
)

// Lab is a running cluster on its own network.
type Lab struct {
	*lab.Lab
	*Network

	dir string
}

// Start makes the network and the cluster on it, one service network for each service interface, and
// waits until all nodes are NORMAL. It sets Dir, Addresses and Command of the options. The caller
// closes the Lab.
func Start(ctx context.Context, o cluster.Options) (*Lab, error) {
	if o.Supervisors == 0 {
		o.Supervisors = 3
	}
	n, err := Connect(ctx, Shape{Dims: o.Dims, Supervisors: o.Supervisors, ServiceNetworks: o.ServiceInterfaces})
	if err != nil {
		return nil, err
	}
	return StartOn(ctx, n, o)
}

// StartOn is Start on a network that exists already, and is closed with the Lab; after an error, at once. A Command of the
// options is kept.
func StartOn(ctx context.Context, n *Network, o cluster.Options) (*Lab, error) {
	l := &Lab{Network: n, dir: n.directory()}
	addresses := n.Addresses()
	o.Dir, o.Addresses = l.dir+"/c", &addresses
	if o.Command == nil {
		o.Command = n.Command
	}
	if err := os.Mkdir(l.dir, 0o755); err != nil {
		return nil, errors.Join(fmt.Errorf("directory of the cluster: %w", err), n.Close())
	}
	var err error
	if l.Lab, err = lab.Start(ctx, o); err != nil {
		return nil, errors.Join(err, n.Close(), os.RemoveAll(l.dir))
	}
	return l, nil
}

// Close ends the cluster and removes the network and the cluster's directory.
func (l *Lab) Close() error {
	return errors.Join(l.Lab.Close(), l.Network.Close(), os.RemoveAll(l.dir))
}

// CloseAndKeep is Close, but keeps the cluster's directory with its logs and returns where.
func (l *Lab) CloseAndKeep() (dir string, err error) {
	err = errors.Join(l.Lab.Close(), l.Network.Close())
	// Use another name, because the next Start removes the old one.
	kept := fmt.Sprintf("%s-kept-%d", l.dir, time.Now().Unix())
	if rerr := os.Rename(l.dir, kept); rerr != nil {
		return l.dir, errors.Join(err, rerr)
	}
	return kept, err
}

// Missing names a missing requirement of this machine or process for network namespaces; empty when nothing is missing.
func Missing() string {
	var out []string
	for _, tool := range []string{"ip", "nft"} {
		if _, err := toolPath(tool); err != nil {
			out = append(out, "the program "+tool)
		}
	}
	if err := mayUnshare(); err != nil {
		out = append(out, fmt.Sprintf("the right to make network namespaces (%v)", err))
	}
	return strings.Join(out, ", ")
}

// mayUnshare makes a network namespace and forgets it.
func mayUnshare() error {
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		result <- unix.Unshare(unix.CLONE_NEWNET)
	}()
	return <-result
}

// toolPath finds a program even outside of a user's PATH.
func toolPath(name string) (string, error) {
	if path, err := exec.LookPath(name); err == nil {
		return path, nil
	}
	return exec.LookPath("/usr/sbin/" + name)
}
