// Package peerfile keeps on disk the supervisors' updates of a node's peers, and of a spare's place. The file is read
// before the first frame leaves, so that a node that restarts after a neighbour was replaced contacts the new
// neighbour.
//
// It knows only the disk. It reports an unreadable file as lost: the configuration then applies, and the half asks
// the supervisors.
package peerfile

import (
	"fmt"

	"github.com/lofamo/lofamo/internal/agent/peers"
	"github.com/lofamo/lofamo/internal/durable"
)

// Name is the file's name in the state directory.
const Name = "dnp.peers"

// Load reads the file. Without a file it returns the zero state: no update yet. lost describes a file that cannot be
// read, or that Save did not write. The state is zero then too; this is no failure.
func Load(path string) (s peers.State, lost error) {
	return durable.Load(path, "peers", peers.MaxSize, peers.State{}, peers.Decode)
}

// Save has the state on disk before it returns.
func Save(path string, s peers.State) error {
	b, err := s.Append(nil)
	if err == nil {
		err = durable.Replace(path, b)
	}
	if err != nil {
		return fmt.Errorf("peers %s: %w", path, err)
	}
	return nil
}
