package host

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"

	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/agent/host/hostcore"
	"github.com/lofamo/lofamo/internal/agent/local"
	"github.com/lofamo/lofamo/internal/agent/local/jobs"
	"github.com/lofamo/lofamo/internal/agent/storage"
	"github.com/lofamo/lofamo/internal/config"
)

// noGroup is of no process: the kernel keeps it for "none".
const noGroup = ^uint32(0)

// newLocal creates the server for the jobs on this node. An unknown group does not stop the half: serveLocal logs it.
func (h *hostHalf) newLocal() (*local.Server, error) {
	group, err := jobsGroup(h.Config.Jobs)
	if err != nil {
		group = noGroup
	}
	p, err := local.NewPolicy(h.Config.Jobs, uint32(os.Geteuid()), group)
	if err != nil {
		return nil, half.InvalidConfig(err)
	}
	return local.New(h, p), nil
}

// jobsGroup returns the group of the jobs' socket.
func jobsGroup(c config.JobsConfig) (uint32, error) {
	if c.Group == "" {
		return uint32(os.Getegid()), nil
	}
	id := c.Group
	if _, err := strconv.ParseUint(id, 10, 32); err != nil {
		g, err := user.LookupGroup(c.Group)
		if err != nil {
			return 0, fmt.Errorf("jobs.group: given %q: want a group of this machine: %w", c.Group, err)
		}
		id = g.Gid
	}
	n, err := strconv.ParseUint(id, 10, 32)
	if err != nil {
		return 0, fmt.Errorf("jobs.group: given %q: %w", c.Group, err)
	}
	return uint32(n), nil
}

// serveLocal answers the jobs of this node until ctx ends. The half can run without it: if the socket cannot be
// created, it logs a warning and continues.
func (h *hostHalf) serveLocal(ctx context.Context) {
	l, err := listenJobs(ctx, h.Config)
	if err != nil {
		h.Log.Warn("jobs on this node get no notices of faults", "err", err)
		return
	}
	srv := h.local.GRPC()
	stop := context.AfterFunc(ctx, srv.Stop)
	defer stop()
	if err := srv.Serve(local.Listen(l, h.Log)); err != nil && ctx.Err() == nil {
		h.Log.Warn("jobs on this node no longer receive notices of faults", "err", err)
	}
}

// listenJobs creates the socket. No other process can open it before it has its configured group and mode.
func listenJobs(ctx context.Context, cfg config.Agent) (net.Listener, error) {
	path := cfg.JobsSocket()
	mode, err := cfg.Jobs.FileMode()
	if err != nil {
		return nil, fmt.Errorf("jobs.mode: %w", err)
	}
	group, err := jobsGroup(cfg.Jobs)
	if err != nil {
		return nil, err
	}
	if cfg.Jobs.Socket != "" {
		if err := makeSocketDir(filepath.Dir(path)); err != nil {
			return nil, err
		}
	}
	l, err := half.ListenUnix(ctx, path)
	if err != nil {
		return nil, err
	}
	if cfg.Jobs.Group != "" {
		err = os.Lchown(path, -1, int(group))
	}
	if err == nil {
		err = os.Chmod(path, mode)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("socket of the jobs: %w", err), l.Close())
	}
	return l, nil
}

// makeSocketDir makes the directory of the jobs' socket. It refuses a directory in which others could replace the
// socket.
func makeSocketDir(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("directory of the jobs' socket: %w", err)
	}
	info, err := os.Stat(dir)
	if err != nil {
		return fmt.Errorf("directory of the jobs' socket: %w", err)
	}
	if m := info.Mode(); m.Perm()&0o022 != 0 && m&os.ModeSticky == 0 {
		return fmt.Errorf("directory of the jobs' socket, %s: has mode %04o: others may put theirs in its place: want 0755 or less, or the "+
			"sticky bit", dir, m.Perm())
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Uid != 0 && int(st.Uid) != os.Geteuid() {
		return fmt.Errorf("directory of the jobs' socket, %s: belongs to user %d: want %d, who runs this, or root", dir, st.Uid, os.Geteuid())
	}
	return nil
}

// Known implements local.Half.
func (h *hostHalf) Known(ids []fault.NodeID) hostcore.Known {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.core.Known(ids)
}

// Watch implements local.Half.
func (h *hostHalf) Watch(ids []fault.NodeID) { h.step(hostcore.Watch{Nodes: ids}) }

// Self implements local.Half.
func (h *hostHalf) Self() (fault.NodeID, fault.Epoch) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.Config.Node, h.core.Epoch()
}

// SinceBoot implements local.Half.
func (h *hostHalf) SinceBoot() time.Duration { return time.Duration(storage.SinceBoot()) }

// Sign implements local.Half.
func (h *hostHalf) Sign(m *lofamov1.JobEureka) ([]byte, error) {
	return servicenet.Seal(&lofamov1.Message{Body: &lofamov1.Message_Eureka{Eureka: m}}, h.Signer)
}

// onJobs handles the DNP half's messages about jobs. It verifies Eurekas here, outside the mutex.
func (h *hostHalf) onJobs(payload []byte) {
	m, err := jobs.DecodeMail(payload)
	if err != nil {
		h.Log.Debug("message from the DNP half refused", "err", err)
		return
	}
	if m.Kind != jobs.Delivered {
		h.local.Heard(m)
		return
	}
	o, err := servicenet.Open(m.Envelope, h.Verifier)
	if err != nil {
		h.refused[servicenet.RefusalOf(err)].Add(1)
		h.Log.Debug("eureka refused", "err", err)
		return
	}
	switch b := o.Msg.GetBody().(type) {
	case *lofamov1.Message_Eureka:
		h.local.Deliver(b.Eureka)
	case *lofamov1.Message_ActOrder: // signed by a supervisor: see servicenet
		h.acting.Hear(o.Msg) // whichever node was ordered to raise it
		h.local.Announced(b.ActOrder, o.Name)
	default: // nothing for jobs
	}
}
