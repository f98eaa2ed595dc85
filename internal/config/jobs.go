package config

import (
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// LocalSocket is the default name of the jobs' socket in the state directory.
const LocalSocket = "local.sock"

// JobsConfig is the socket on which the host half serves the jobs of its node, with its access lists. Each of Watch,
// Raise and Barrier is a list of: any (who can open the socket), root, owner (the user that the half runs as), group
// (members of Group), uid:N, gid:N.
type JobsConfig struct {
	// Socket is its path, at most 107 bytes. Other users have no access to the state directory, so a socket for their
	// jobs must be elsewhere, such as /run/lofamo/local.sock; the directory is made if need be. Default local.sock in
	// stateDir.
	Socket string `json:"socket,omitempty"`
	// Mode is the socket's permission bits, octal: "0600" to "0777". Users with write permission may connect. Default
	// 0600.
	Mode string `json:"mode"`
	// Group is the group that it gets, a name or number. Default none: that of the half.
	Group string `json:"group,omitempty"`
	// Watch lists who may watch faults and eurekas. Default any.
	Watch []string `json:"watch"`
	// Raise lists who may raise eurekas. Default root, owner, group.
	Raise []string `json:"raise"`
	// Barrier lists who may take part in barriers. Default root, owner, group.
	Barrier []string `json:"barrier"`
}

// maxSocketPath is the longest path that fits a socket address with its closing zero.
const maxSocketPath = 107

var groupName = lazily(`^([0-9]{1,10}|[a-z_][a-z0-9_-]{0,31}\$?)$`)

func defaultJobs() JobsConfig {
	who := []string{"root", "owner", "group"}
	return JobsConfig{Mode: "0600", Watch: []string{"any"}, Raise: who, Barrier: slices.Clone(who)}
}

// JobsSocket returns the path of the jobs' socket.
func (a Agent) JobsSocket() string {
	if a.Jobs.Socket != "" {
		return a.Jobs.Socket
	}
	return filepath.Join(a.StateDir, LocalSocket)
}

// FileMode returns the permission bits. It fails where Validate does.
func (j JobsConfig) FileMode() (fs.FileMode, error) {
	m, err := strconv.ParseUint(j.Mode, 8, 32)
	if err != nil || m < 0o600 || m > 0o777 {
		return 0, fmt.Errorf("given %q: want octal, 0600 to 0777", j.Mode)
	}
	return fs.FileMode(m), nil
}

func (j JobsConfig) validate(p *problems) {
	if len(j.Socket) > maxSocketPath || j.Socket != "" && !filepath.IsAbs(j.Socket) {
		p.bad("jobs.socket", fmt.Sprintf("%q", j.Socket), "an absolute path of at most %d bytes, or nothing", maxSocketPath)
	}
	_, err := j.FileMode()
	p.wrap("jobs.mode", err)
	if j.Group != "" && !groupName().MatchString(j.Group) {
		p.bad("jobs.group", j.Group, "the name or number of a group, or nothing")
	}
	for _, list := range []struct {
		field string
		words []string
	}{{"jobs.watch", j.Watch}, {"jobs.raise", j.Raise}, {"jobs.barrier", j.Barrier}} {
		_, err := ParseWho(list.words)
		p.wrap(list.field, err)
	}
}

// Who is a set of users.
type Who struct {
	Any, Root, Owner, Group bool
	UIDs, GIDs              []uint32
}

// maxWho bounds a list.
const maxWho = 256

// ParseWho parses a list of JobsConfig. An empty list allows no user.
func ParseWho(words []string) (Who, error) {
	var w Who
	if len(words) > maxWho {
		return w, fmt.Errorf("given %d: want at most %d", len(words), maxWho)
	}
	for _, word := range words {
		kind, number, numbered := strings.Cut(word, ":")
		n, err := strconv.ParseUint(number, 10, 32)
		switch {
		case word == "any":
			w.Any = true
		case word == "root":
			w.Root = true
		case word == "owner":
			w.Owner = true
		case word == "group":
			w.Group = true
		case numbered && err == nil && kind == "uid":
			w.UIDs = append(w.UIDs, uint32(n))
		case numbered && err == nil && kind == "gid":
			w.GIDs = append(w.GIDs, uint32(n))
		default:
			return Who{}, fmt.Errorf("given %q: want any, root, owner, group, uid:N or gid:N", word)
		}
	}
	return w, nil
}

// Has reports whether the list includes a process with these credentials. owner is the user that the half runs as,
// group that of the socket.
func (w Who) Has(uid uint32, gids []uint32, owner, group uint32) bool {
	return w.Any || w.Root && uid == 0 || w.Owner && uid == owner || slices.Contains(w.UIDs, uid) ||
		slices.ContainsFunc(gids, func(g uint32) bool { return w.Group && g == group || slices.Contains(w.GIDs, g) })
}
