// Package peerfile keeps on disk what the supervisors have said of a node's peers, and of a spare's place: it is there before the
// first frame leaves, so that a node that is restarted after a neighbour was replaced speaks with the one that is there now.
//
// It knows only the disk. What cannot be read is lost, and said so: the configuration stands then, and the supervisors are asked.
package peerfile

import (
	"fmt"

	"github.com/lofamo/lofamo/internal/agent/peers"
	"github.com/lofamo/lofamo/internal/durable"
)

// Name is the file's name in the state directory.
const Name = "dnp.peers"

// Load reads the file. Without one the state is the zero one: nothing was said. lost tells of one that cannot be read, or is not
// what Save wrote; the state is the zero one then too, and it is no failure.
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
