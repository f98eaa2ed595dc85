package daemon

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus"
	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/torus/udplink"
	"github.com/lofamo/lofamo/pkg/udpguard"
	"github.com/lofamo/lofamo/pkg/watchdog/regfile"

	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/agent/peers"
	"github.com/lofamo/lofamo/internal/agent/storage"
	"github.com/lofamo/lofamo/internal/config"
)

// announcements is the number of frames that announce a restart to a neighbour each time: some may be lost.
const announcements = 3

// links are the UDP sockets of a DNP half's torus links, held by its daemon. The half sends and receives on them while
// it runs. While it does not run, arriving frames wait in the sockets, and the daemon announces on them that the half
// will return (seed 000 §4: the neighbours must know the state). They never send at the same time: the daemon sends
// only when the process is certainly dead.
type links struct {
	cfg     config.Agent // as in its file: the supervisors may have changed the half's peers
	log     *slog.Logger
	sockets [grid.NumDirections]int // -1: none
	// left is the order of the place that a spare has just left: its former neighbours are to learn of the stop. nil: the
	// stored order counts.
	left *peers.State
}

func newLinks(cfg config.Agent, log *slog.Logger) *links {
	l := &links{cfg: cfg, log: log}
	for i := range l.sockets {
		l.sockets[i] = -1
	}
	return l
}

// present returns the configuration with the supervisors' orders.
func (l *links) present() config.Agent {
	if l.left != nil {
		return half.WithPeers(l.cfg, *l.left)
	}
	return half.WithStoredPeers(l.cfg)
}

// each calls do for every end of the node. An end without a link has no peer: an order may give it one while the half
// runs, and then its socket must be there.
func (l *links) each(do func(dir grid.Direction, local, peer netip.AddrPort)) {
	cfg := l.present()
	src, dims, err := cfg.Topology()
	if err != nil {
		return // was validated
	}
	linked := dims.LinksOf(src)
	for _, dir := range grid.Directions() {
		addr := cfg.Links[dir.String()]
		local, lerr := netip.ParseAddrPort(addr.Local)
		peer, perr := netip.ParseAddrPort(addr.Peer)
		if perr != nil || !slices.Contains(linked, dir) {
			peer = netip.AddrPort{}
		}
		if lerr == nil {
			do(dir, local, peer)
		}
	}
}

const notTaken = "cannot take over sockets of links from the running half: if the half ends, packets from its neighbours may be lost"

// adopt takes over the sockets of a running half, which inherited them from an earlier daemon. Sockets that cannot be
// taken over are opened when the half is dead.
func (l *links) adopt(p *process) {
	environ, err := environOf(p.pid)
	if err != nil {
		l.log.Warn(notTaken, "err", err)
		return
	}
	for _, kv := range environ {
		value, ok := strings.CutPrefix(kv, half.LinksEnv+"=")
		if !ok {
			continue
		}
		passed := half.ParseLinks(value)
		l.each(func(dir grid.Direction, local, _ netip.AddrPort) {
			fd, ok := passed[dir]
			if !ok || l.sockets[dir.Index()] >= 0 {
				return
			}
			own, err := unix.PidfdGetfd(p.fd, fd, 0) // close-on-exec
			if err != nil {
				// For example EPERM with kernel.yama.ptrace_scope 1, because the half is no child of this daemon.
				l.log.Warn(notTaken, "link", dir.String(), "err", err)
				return
			}
			if !half.BoundTo(own, local, l.cfg.Links[dir.String()].Interface) {
				_ = unix.Close(own)
				return
			}
			l.sockets[dir.Index()] = own
		})
	}
}

// take takes the links from the configuration that the next half reads. It closes the sockets that no longer belong to a link, because
// their addresses would stay in use. The earlier half must be dead.
func (l *links) take(next config.Agent) {
	l.cfg.Coord, l.cfg.Dims, l.cfg.Links = next.Coord, next.Dims, next.Links
	if _, _, err := l.present().Topology(); err != nil {
		return // a spare whose place cannot be read: its sockets may still be right
	}
	var kept [grid.NumDirections]bool
	l.each(func(dir grid.Direction, local, _ netip.AddrPort) {
		fd := l.sockets[dir.Index()]
		kept[dir.Index()] = fd >= 0 && half.BoundTo(fd, local, l.cfg.Links[dir.String()].Interface)
	})
	for _, dir := range grid.Directions() {
		at := &l.sockets[dir.Index()]
		if *at < 0 || kept[dir.Index()] {
			continue
		}
		l.log.Info("link socket closed: the link has another address or interface now, or none", "link", dir.String())
		_ = unix.Close(*at)
		*at = -1
	}
}

// open opens the missing sockets. The half opens a socket that fails here, and reports the error.
func (l *links) open() {
	l.each(func(dir grid.Direction, local, peer netip.AddrPort) {
		at := &l.sockets[dir.Index()]
		if *at >= 0 {
			return
		}
		conn, err := udplink.Bind(local, l.cfg.Links[dir.String()].Interface)
		if err != nil {
			l.log.Debug("link socket not held", "link", dir.String(), "err", err)
			return
		}
		defer func() { _ = conn.Close() }()
		if !peer.IsValid() {
			peer = local // nobody: a socket that nobody reads takes no packets
		}
		if raw, err := conn.SyscallConn(); err == nil { // the half does it too, and logs a failure
			_ = udpguard.SetPeer(raw, peer)
		}
		*at = duplicate(conn)
	})
}

// duplicate returns a descriptor of the same socket, or -1.
func duplicate(conn *net.UDPConn) int {
	own := -1
	raw, err := conn.SyscallConn()
	if err != nil {
		return -1
	}
	_ = raw.Control(func(fd uintptr) {
		if n, err := unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0); err == nil {
			own = n
		}
	})
	return own
}

// pass returns the sockets for a half that is being started, and the value of the environment variable that names them.
// The caller closes the files.
func (l *links) pass() (files []*os.File, env string) {
	var dirs []grid.Direction
	l.each(func(dir grid.Direction, _, _ netip.AddrPort) {
		fd := l.sockets[dir.Index()]
		if fd < 0 {
			return
		}
		if n, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0); err == nil {
			files, dirs = append(files, os.NewFile(uintptr(n), "link "+dir.String())), append(dirs, dir)
		}
	})
	return files, half.FormatLinks(dirs)
}

func (l *links) close() {
	for i, fd := range l.sockets {
		if fd >= 0 {
			_ = unix.Close(fd)
			l.sockets[i] = -1
		}
	}
}

// announce tells the neighbours that the half, which is certainly dead, will return. It sends on every link with a
// session, with numbers from the half's copy. It blocks only for a few system calls.
func (l *links) announce(registers *regfile.File, back time.Duration, attempt int, hostDead bool) error {
	id := storage.CopyIdentity{Node: l.cfg.Node, Half: fault.HalfDNP}
	var err error
	if id.Boot, err = storage.BootID(); err != nil {
		return err
	}
	copied, err := storage.OpenCopyForDaemon(half.CopyPath(l.cfg.StateDir, fault.HalfDNP), id)
	if err != nil {
		return err
	}
	var errs []error
	src, dims, _ := l.present().Topology()
	of := torus.Frame{Src: src}
	if hostDead {
		of.Flags |= torus.FlagHostDead
	}
	if registers != nil {
		of.Epoch = registers.Epoch(fault.HalfDNP)
		of.DNP, of.Host = watchdogWords(registers)
	}
	if n, ok := copied.Numbers(); ok { // the page may be lost or new, and an earlier epoch looks like a replay
		of.Epoch = n.Epoch
	}
	l.each(func(dir grid.Direction, _, peer netip.AddrPort) {
		of.Direction = dir
		of.Dst, _ = dims.Neighbour(src, dir)
		if fd := l.sockets[dir.Index()]; fd >= 0 && peer.IsValid() {
			errs = append(errs, announceBy(fd, peer, copied, of, torus.Restarting{Back: back, Attempt: uint32(attempt)}))
		}
	})
	return errors.Join(append(errs, copied.Close())...)
}

// watchdogWords returns the current watchdog words, or 0, which carries no information, for one that no half can have
// written: announcements are sealed, and neighbours trust them.
func watchdogWords(registers *regfile.File) (dnp, host uint32) {
	_, dnp, dnpErr := registers.LoadDNP()
	if dnpErr != nil {
		dnp = 0
	}
	_, host, hostErr := registers.LoadHost()
	if hostErr != nil {
		host = 0
	}
	return dnp, host
}

// announceBy sends the announcement on one link.
func announceBy(fd int, peer netip.AddrPort, copied *storage.CopyFile, of torus.Frame, r torus.Restarting) error {
	to, err := udplink.Sockaddr(peer)
	if err != nil {
		return err
	}
	for range announcements {
		_, session, ok := copied.Link(of.Direction)
		if !ok || session.ID == 0 {
			return nil // no neighbour could read it
		}
		seq, counters, err := copied.TakeSeq(of.Direction)
		if err != nil {
			return err
		}
		of.Session, of.Seq, of.Ack = session.ID, seq, 0
		if counters.RxSession == session.ID {
			of.Ack = counters.High
		}
		f := torus.RestartingFrame(of, r)
		b, err := f.Append(nil, torus.ResumeSession(session.ID, session.Tx, session.Rx, seq-1))
		if err == nil {
			err = udplink.Sendto(fd, b, to)
		}
		if err != nil {
			return fmt.Errorf("announce a restart by link %s: %w", of.Direction, err)
		}
	}
	return nil
}
