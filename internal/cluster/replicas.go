package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/pki"
)

// Supervisor finds a replica by its id.
func (c *Cluster) Supervisor(id string) (SupervisorInfo, error) {
	s, err := c.supervisor(id)
	if err != nil {
		return SupervisorInfo{}, err
	}
	return *s, nil
}

func (c *Cluster) supervisor(id string) (*SupervisorInfo, error) {
	var known []string
	for i := range c.info.Supervisors {
		if c.info.Supervisors[i].ID == id {
			return &c.info.Supervisors[i], nil
		}
		known = append(known, c.info.Supervisors[i].ID)
	}
	return nil, fmt.Errorf("supervisor %q: want one of %s", id, strings.Join(known, ", "))
}

// SignalSupervisor sends a signal to a replica's process.
func (c *Cluster) SignalSupervisor(id string, sig unix.Signal) error {
	s, err := c.supervisor(id)
	if err != nil {
		return err
	}
	p, err := openProcess(c.running(s))
	if err != nil {
		return fmt.Errorf("supervisor %s: %w", id, err)
	}
	defer p.close()
	return p.signal(sig)
}

// reapTime bounds the wait for the news that a process of ours has ended.
const reapTime = time.Second

// KillSupervisor ends a replica's process by signal 9, and returns when it has ended. One that has ended by
// itself is no error.
func (c *Cluster) KillSupervisor(ctx context.Context, id string) error {
	s, err := c.supervisor(id)
	if err != nil {
		return err
	}
	pid, started := c.running(s)
	if err := kill(ctx, pid, started); err != nil {
		return fmt.Errorf("kill supervisor %s: %w", id, err)
	}
	if s.PID == 0 {
		return nil
	}
	c.expectExit(member{"supervisor", id}.String())
	return c.change(func() error {
		if s, err := c.supervisor(id); err == nil && !alive(s.PID, s.Started) {
			s.PID, s.Started = 0, 0
		}
		return nil
	})
}

func kill(ctx context.Context, pid int, started uint64) error {
	p, err := openProcess(pid, started)
	if errors.Is(err, errNotOurs) {
		return nil
	}
	if err != nil {
		return err
	}
	defer p.close()
	if err := p.signal(unix.SIGKILL); err != nil && !errors.Is(err, errNotOurs) {
		return err
	}
	return p.wait(ctx)
}

// expectExit removes an expected exit from Exited.
func (c *Cluster) expectExit(name string) {
	if c.exited == nil {
		return
	}
	timeout := time.After(reapTime)
	for {
		select {
		case e := <-c.exited:
			if e.Name == name {
				return
			}
			select { // somebody else's
			case c.exited <- e:
			default:
			}
		case <-timeout:
			return
		}
	}
}

// memberBound bounds the wait for a new etcd member.
const memberBound = 3 * time.Second

// startSupervisors starts all replicas. The first start of a replica waits until the one before it has made its etcd
// member. A new member asks all others whether it is new, and waits a second for each one that listens but does not
// answer yet: replicas that start together would wait for each other.
func (c *Cluster) startSupervisors(ctx context.Context) error {
	fresh := ""
	for i := range c.info.Supervisors {
		s := &c.info.Supervisors[i]
		if fresh != "" {
			if err := c.awaitMember(ctx, fresh); err != nil {
				return errors.Join(err, c.save())
			}
		}
		fresh = ""
		log := c.memberLog(s.ID)
		if _, err := os.Stat(log); err != nil {
			fresh = log
		}
		if err := c.startSupervisor(s); err != nil {
			return errors.Join(err, c.save())
		}
	}
	return c.save()
}

// memberLog is the directory of a replica's write-ahead log. Its etcd member makes it when it knows that it is new.
func (c *Cluster) memberLog(id string) string {
	return c.path("supervisors", id, "data", "etcd", "member", "wal")
}

// awaitMember waits until a replica has made its log, or is late with it.
func (c *Cluster) awaitMember(ctx context.Context, log string) error {
	bound, cancel := context.WithTimeout(ctx, memberBound)
	defer cancel()
	err := c.poll(bound, pollEvery/5, func() (bool, error) {
		_, err := os.Stat(log)
		return err == nil, err
	})
	if err != nil && bound.Err() != nil && ctx.Err() == nil {
		return nil // the wait for the leader reports it
	}
	return err
}

// StartSupervisor starts a replica that does not run.
func (c *Cluster) StartSupervisor(id string) error {
	return c.change(func() error {
		s, err := c.supervisor(id)
		if err != nil {
			return err
		}
		if pid, _ := c.running(s); pid != 0 {
			return fmt.Errorf("start supervisor %s: it runs as process %d", id, pid)
		}
		if c.binDir, err = FindBinaries(c.binDir); err != nil {
			return err
		}
		return c.startSupervisor(s)
	})
}

// ResumeSupervisor starts a replica with the data that it has, unless it runs.
func (c *Cluster) ResumeSupervisor(id string) error {
	s, err := c.supervisor(id)
	if err != nil {
		return err
	}
	if pid, _ := c.running(s); pid != 0 {
		return nil
	}
	return c.StartSupervisor(id)
}

func (c *Cluster) startSupervisor(s *SupervisorInfo) error {
	dir := c.path("supervisors", s.ID)
	pid, started, err := c.spawn(member{"supervisor", s.ID}, filepath.Join(dir, "log"), supervisorIn(c.binDir), "run", "--config",
		filepath.Join(dir, "supervisor.yaml"))
	if err != nil {
		return err
	}
	s.PID, s.Started = pid, started
	if err := raise(pid); err != nil {
		c.unweighted = err
	}
	if err := c.weighSupervisor(s); err != nil {
		c.ungrouped = err
	}
	return nil
}

func (c *Cluster) supervisorConfig(id string) string {
	return c.path("supervisors", id, "supervisor.yaml")
}

// ReconfigureSupervisor changes the configuration file of a replica, which reads it at its next start.
func (c *Cluster) ReconfigureSupervisor(id string, change func(*config.Supervisor)) error {
	cfg, err := config.LoadSupervisor(c.supervisorConfig(id), nil)
	if err != nil {
		return err
	}
	change(&cfg)
	if err := cfg.Validate(); err != nil {
		return fmt.Errorf("configuration of supervisor %s: %w", id, err)
	}
	return writeYAML(c.supervisorConfig(id), cfg)
}

// EmptySupervisor turns a replica into one with a new disk: it kills the process, removes the data, and configures it
// to join the members in initialCluster.
func (c *Cluster) EmptySupervisor(ctx context.Context, id, initialCluster string) error {
	if err := c.KillSupervisor(ctx, id); err != nil {
		return err
	}
	if err := os.RemoveAll(c.path("supervisors", id, "data")); err != nil {
		return fmt.Errorf("empty supervisor %s: %w", id, err)
	}
	return c.ReconfigureSupervisor(id, func(cfg *config.Supervisor) {
		cfg.Etcd.ClusterState, cfg.Etcd.InitialCluster = "existing", initialCluster
	})
}

// PlanSupervisor creates the files of one more replica, modelled on the first. It returns its id, which may be that of
// a removed replica, and the address of its etcd member. Add it as a member before its start. Agents learn of it by
// gossip, and from their configurations when these are changed.
func (c *Cluster) PlanSupervisor() (id, peerURL string, err error) {
	err = c.change(func() error {
		id, peerURL, err = c.addSupervisor()
		return err
	})
	return id, peerURL, err
}

// addSupervisor creates the files of one more replica, and adds it to c.info.
func (c *Cluster) addSupervisor() (id, peerURL string, err error) {
	if c.planned {
		return "", "", errors.New("add a supervisor: the cluster's addresses were given: none is known for another one")
	}
	for i := 0; id == ""; i++ {
		if _, err := c.supervisor(SupervisorID(i)); err != nil {
			id = SupervisorID(i)
		}
	}
	fail := func(err error) (string, string, error) {
		return "", "", errors.Join(fmt.Errorf("add supervisor %s: %w", id, err), os.RemoveAll(c.path("supervisors", id)))
	}
	interfaces := c.info.interfaces()
	ports, err := reservePorts(6 + interfaces)
	if err != nil {
		return fail(err)
	}
	defer ports.release()
	a, err := ports.supervisor(interfaces)
	if err != nil {
		return fail(err)
	}
	if err := c.issueSupervisor(id, a); err != nil {
		return fail(err)
	}
	cfg, err := config.LoadSupervisor(c.supervisorConfig(c.info.Supervisors[0].ID), nil)
	if err != nil {
		return fail(err)
	}
	cfg.ID, cfg.DataDir = id, c.path("supervisors", id, "data")
	cfg.Report, cfg.ReportAlternates, cfg.GRPC, cfg.HTTP = a.Report[0], a.Report[1:], a.GRPC, a.HTTP
	cfg.Web, cfg.GossipListen = webConfig(a.Web), a.Gossip
	cfg.Etcd.Name, cfg.Etcd.PeerURL, cfg.Etcd.ClientURL, cfg.Etcd.ClusterState = id, "https://"+a.EtcdPeer, "https://"+a.EtcdClient, "existing"
	cfg.TLS.Cert, cfg.TLS.Key, cfg.ECDSA = c.PKI(id+".pem"), c.PKI(id+".key"), c.ecdsa(id)
	info := SupervisorInfo{ID: id, GRPC: a.GRPC, HTTP: a.HTTP, Web: a.Web, Report: a.Report[0]}
	if err := c.beside(&cfg); err != nil {
		return fail(err)
	}
	if err := cfg.Validate(); err != nil {
		return fail(err)
	}
	if err := writeYAML(c.supervisorConfig(id), cfg); err != nil {
		return fail(err)
	}
	c.info.Supervisors = append(c.info.Supervisors, info)
	return id, cfg.Etcd.PeerURL, nil
}

// beside adds the other replicas and itself to the configuration of a new replica. Each replica's own file counts:
// others' files may describe a removed replica.
func (c *Cluster) beside(cfg *config.Supervisor) error {
	cfg.Replicas, cfg.GossipJoin = nil, nil
	var members []string
	add := func(r config.Supervisor) {
		cfg.Replicas = append(cfg.Replicas, config.ReplicaEntry{ID: r.ID, GRPC: r.GRPC, Report: r.Report, HTTP: r.HTTP,
			Web: webURL(r.Web.Listen)})
		members = append(members, r.ID+"="+r.Etcd.PeerURL)
	}
	for _, s := range c.Serving("") {
		other, err := config.LoadSupervisor(c.supervisorConfig(s.ID), nil)
		if err != nil {
			return err
		}
		cfg.GossipJoin = append(cfg.GossipJoin, other.GossipListen)
		add(other)
	}
	add(*cfg)
	cfg.Etcd.InitialCluster = strings.Join(members, ",")
	return nil
}

func (c *Cluster) issueSupervisor(id string, a SupervisorAddresses) error {
	ca, err := pki.LoadCA(c.PKI("ca.pem"), c.PKI("ca.key"))
	if err != nil {
		return err
	}
	ips, err := a.layout(id, "").IPs()
	if err != nil {
		return err
	}
	return c.issueReplica(ca, id, ips)
}

// ForgetSupervisor ends a replica that is no longer a member, and removes its files.
func (c *Cluster) ForgetSupervisor(ctx context.Context, id string) error {
	if err := c.KillSupervisor(ctx, id); err != nil {
		return err
	}
	err := c.change(func() error {
		if s, err := c.supervisor(id); err == nil {
			s.removeGroup()
		}
		c.info.Supervisors = slices.DeleteFunc(slices.Clone(c.info.Supervisors), func(s SupervisorInfo) bool { return s.ID == id })
		return nil
	})
	return errors.Join(os.RemoveAll(c.path("supervisors", id)), err)
}
