package local

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/lofamo/lofamo/internal/bounded"
	"github.com/lofamo/lofamo/internal/config"
)

// caller is the process at the other end of a connection, as the kernel recorded it when the connection was opened.
// No message from that process changes it.
type caller struct {
	credentials.CommonAuthInfo
	uid  uint32
	gids []uint32 // the process' own and its supplementary groups
	pid  int32    // for the log
	conn net.Conn // closes the connection; nil for a client
}

// user returns the user's name for counting connections.
func (c caller) user() string { return "uid " + strconv.FormatUint(uint64(c.uid), 10) }

// AuthType implements credentials.AuthInfo.
func (caller) AuthType() string { return "unix" }

// Credentials give the server the identity of the peer on its Unix sockets (SO_PEERCRED). They encrypt nothing: the
// bytes stay in the kernel.
func Credentials() credentials.TransportCredentials { return peerCredentials{} }

type peerCredentials struct{}

// ServerHandshake implements credentials.TransportCredentials. It exchanges no bytes.
func (peerCredentials) ServerHandshake(c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	who, err := callerOf(c)
	if err != nil {
		return nil, nil, fmt.Errorf("credentials of a caller: %w", err)
	}
	if b := bounded.Of(c); b != nil {
		subject := who.user() // the kernel has identified the user
		if who.uid == 0 {
			subject = "" // root has no limit of its own, so that it always gets in
		}
		if err := b.Admit(subject); err != nil {
			return nil, nil, fmt.Errorf("credentials of a caller: %w", err)
		}
	}
	who.conn = c
	return c, who, nil
}

// callerOf returns the process at the other end of a Unix socket, as the kernel reports it.
func callerOf(c net.Conn) (who caller, err error) {
	if b := bounded.Of(c); b != nil {
		c = b.Conn
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		return who, fmt.Errorf("given a %T: want a Unix socket", c)
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return who, err
	}
	who.SecurityLevel = credentials.PrivacyAndIntegrity
	if cerr := raw.Control(func(fd uintptr) { err = who.read(int(fd)) }); cerr != nil {
		return who, cerr
	}
	return who, err
}

func (c *caller) read(fd int) error {
	cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return err
	}
	c.uid, c.pid = cred.Uid, cred.Pid
	groups, err := peerGroups(fd)
	if err != nil {
		return err
	}
	c.gids = append(c.gids[:0], append(groups, cred.Gid)...)
	return nil
}

// maxGroups is the largest number of groups of a Linux process (NGROUPS_MAX).
const maxGroups = 65536

// peerGroups returns the supplementary groups (SO_PEERGROUPS, Linux 4.13; none on older kernels). Package unix has no
// call for an option that is an array.
func peerGroups(fd int) ([]uint32, error) {
	for n := uint32(32); n <= maxGroups; n *= 2 {
		groups := make([]uint32, n)
		size := n * 4
		_, _, errno := syscall.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_PEERGROUPS,
			uintptr(unsafe.Pointer(&groups[0])), uintptr(unsafe.Pointer(&size)), 0)
		switch {
		case errno == 0:
			return slices.Clip(groups[:size/4]), nil
		case errors.Is(errno, unix.ENOPROTOOPT):
			return nil, nil
		case !errors.Is(errno, unix.ERANGE):
			return nil, fmt.Errorf("groups: %w", errno)
		}
	}
	return nil, fmt.Errorf("groups: more than %d", maxGroups)
}

// ClientHandshake implements credentials.TransportCredentials.
func (peerCredentials) ClientHandshake(_ context.Context, _ string, c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return c, caller{}, nil
}

// Info implements credentials.TransportCredentials.
func (peerCredentials) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "unix"}
}

// Clone implements credentials.TransportCredentials.
func (c peerCredentials) Clone() credentials.TransportCredentials { return c }

// OverrideServerName implements credentials.TransportCredentials. There are no server names here.
func (peerCredentials) OverrideServerName(string) error { return nil }

// Policy lists the users who may watch, raise and use barriers. The zero value permits nothing.
type Policy struct {
	Watch, Raise, Barrier config.Who
	Owner, Group          uint32 // the half's user, and the socket's group
}

// NewPolicy reads the configuration's lists, which have been validated.
func NewPolicy(c config.JobsConfig, owner, group uint32) (Policy, error) {
	p := Policy{Owner: owner, Group: group}
	for _, l := range []struct {
		field string
		words []string
		who   *config.Who
	}{{"jobs.watch", c.Watch, &p.Watch}, {"jobs.raise", c.Raise, &p.Raise}, {"jobs.barrier", c.Barrier, &p.Barrier}} {
		var err error
		if *l.who, err = config.ParseWho(l.words); err != nil {
			return Policy{}, fmt.Errorf("%s: %w", l.field, err)
		}
	}
	return p, nil
}

// callerIn returns the caller of a call. A connection without peer credentials has none.
func callerIn(ctx context.Context) (caller, bool) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return caller{}, false
	}
	who, ok := p.AuthInfo.(caller)
	return who, ok
}

// admit returns the caller if he may call a method. gRPC refuses unknown methods itself.
func (s *Server) admit(ctx context.Context, method string) (caller, error) {
	who, ok := callerIn(ctx)
	if !ok {
		return caller{}, status.Error(codes.PermissionDenied, "the caller is not known: want a Unix socket of this node")
	}
	if to, name := s.policy.right(method); name != "" && !to.Has(who.uid, who.gids, s.policy.Owner, s.policy.Group) {
		return caller{}, status.Errorf(codes.PermissionDenied, "uid %d may not %s here: want one of jobs.%s in the node's configuration",
			who.uid, name, name)
	}
	return who, nil
}
