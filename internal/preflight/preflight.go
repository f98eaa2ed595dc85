// Package preflight has the checks of a machine that need no answer of a supervisor: lofamo-agent makes them before it enrols, and
// lofamoctl doctor whenever a person asks. They change nothing.
package preflight

import (
	"errors"
	"fmt"
	"net"

	"golang.org/x/sys/unix"

	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/durable"
)

// newRoom is the space that the files of a new state directory take, without the spools, and some more.
const newRoom = 1 << 20

// Room refuses a disk without room for the files of a new state directory.
func Room(cfg config.Agent) error {
	room, err := durable.RoomOf(cfg.StateDir)
	if err != nil {
		return err
	}
	if need := newRoom + 2*uint64(cfg.Service.SpoolBytes); room.Free < need { //nolint:gosec // validated
		return fmt.Errorf("state directory %s: %s: want at least %d MiB for a first start: free some space there, or move stateDir",
			cfg.StateDir, room, need>>20)
	}
	return nil
}

// Ports refuses UDP addresses of a node on which another program listens.
func Ports(cfg config.Agent) error {
	var listen []string
	for _, i := range cfg.Service.Interfaces() {
		listen = append(listen, i.Listen)
	}
	for _, l := range cfg.Links {
		listen = append(listen, l.Local)
	}
	for _, address := range listen {
		c, err := net.ListenPacket("udp", address)
		if err == nil {
			err = c.Close()
		}
		if errors.Is(err, unix.EADDRINUSE) {
			return fmt.Errorf("UDP address %s: another program of this machine listens there: stop it, or set join.ports", address)
		}
	}
	return nil
}
