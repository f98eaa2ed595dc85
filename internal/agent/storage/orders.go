package storage

import (
	"fmt"
	"path/filepath"

	"github.com/lofamo/lofamo/pkg/order"
	"github.com/lofamo/lofamo/pkg/torus/chanmask"

	"github.com/lofamo/lofamo/internal/agent/peers"
	"github.com/lofamo/lofamo/internal/durable"
)

// OrderFile stores the orders of a node in its state directory, for some kinds. It is read before the first frame
// leaves, so that a restarted node isolates known faults and contacts new neighbours at once.
//
// It reports an unreadable file as lost. The node then behaves as without orders, and asks the supervisors for them.
type OrderFile[S any] struct {
	name, what string
	most       int // bytes
	none       S   // without a file, and if it is lost
	encode     func(S) ([]byte, error)
	decode     func([]byte) (S, error)
}

// MaskOrders is the file of the channel mask: the non-volatile state of seed 003 §6.1.
func MaskOrders() OrderFile[chanmask.State] {
	return OrderFile[chanmask.State]{
		"dnp.mask", "channel mask", chanmask.StateSize, chanmask.Fresh(),
		func(s chanmask.State) ([]byte, error) { return s.Append(nil), nil }, chanmask.Decode,
	}
}

// PeerOrders is the file of the supervisors' updates of a node's peers, and of a spare's place.
func PeerOrders() OrderFile[peers.State] {
	return OrderFile[peers.State]{
		"dnp.peers", "peers", peers.MaxSize, peers.State{},
		func(s peers.State) ([]byte, error) { return s.Append(nil) }, peers.Decode,
	}
}

// PlainOrders is the file of the kinds without messages of their own; package order encodes and checks it.
func PlainOrders() OrderFile[[]byte] {
	return OrderFile[[]byte]{
		"dnp.orders", "orders", order.MaxHeld, nil,
		func(b []byte) ([]byte, error) { return b, nil }, func(b []byte) ([]byte, error) { return b, nil },
	}
}

// Path returns the file's path in a state directory.
func (f OrderFile[S]) Path(stateDir string) string { return filepath.Join(stateDir, f.name) }

// Load reads the file. lost describes a file that cannot be read, or that Save did not write; this is no failure.
func (f OrderFile[S]) Load(stateDir string) (s S, lost error) {
	return durable.Load(f.Path(stateDir), f.what, f.most, f.none, f.decode)
}

// Save has the state on disk before it returns.
func (f OrderFile[S]) Save(stateDir string, s S) error {
	b, err := f.encode(s)
	if err == nil {
		err = durable.Replace(f.Path(stateDir), b)
	}
	if err != nil {
		return fmt.Errorf("%s %s: %w", f.what, f.Path(stateDir), err)
	}
	return nil
}
