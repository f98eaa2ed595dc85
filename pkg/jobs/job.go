package jobs

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// Job describes a process's part in a job.
type Job struct {
	// Name of this run: 1 to 63 of a-z, 0-9 and '-'. Another run needs another name, for example with the batch
	// system's number, because the nodes remember barriers by this name.
	Name string
	// Members are the nodes of the job, including this one. All processes name the same ones.
	Members []string
	// Participants is the number of its processes on this node; 0 means 1.
	Participants int
	// Participant identifies this process among them: 1 to 64 of [A-Za-z0-9._-]. Empty: the process id with its PID
	// namespace, since processes of several containers may all have the id 1.
	Participant string
}

// Member is a process of a job. Its methods may be called from several goroutines.
type Member struct {
	Job
	client *Client

	mu    sync.Mutex
	times map[string]uint64 // visits to each barrier so far
}

// Job returns this process's membership in a job.
func (c *Client) Job(j Job) *Member {
	if j.Participant == "" {
		j.Participant = participant()
	}
	return &Member{Job: j, client: c, times: make(map[string]uint64)}
}

// participant returns a name for this process that is unique on its node.
func participant() string {
	pid := strconv.Itoa(os.Getpid())
	space, err := os.Readlink("/proc/self/ns/pid") // pid:[4026531836]
	if err != nil {
		return pid
	}
	return pid + "." + strings.Trim(space, "pid:[]")
}

// Barrier waits until all participants of all members have reached the barrier of that name as often as this one: the
// first call is generation 1. After an error the next call repeats the generation. The error is a *GoneError if a
// member is gone, and a *MissingError if the context's deadline came first.
func (m *Member) Barrier(ctx context.Context, name string) error {
	m.mu.Lock()
	generation := m.times[name] + 1
	m.mu.Unlock()
	if err := m.BarrierAt(ctx, name, generation); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.times[name] = max(m.times[name], generation)
	return nil
}

// BarrierAt is Barrier with a generation that the job counts itself, from 1. A process that joins in the middle needs
// it.
func (m *Member) BarrierAt(ctx context.Context, name string, generation uint64) error {
	what := fmt.Sprintf("barrier %s of %s", name, m.Name)
	if m.Participants < 0 {
		return fmt.Errorf("%s: participants: given %d: want 1 to 256, or 0", what, m.Participants)
	}
	return m.client.persist(ctx, what, func() error {
		req := &lofamov1.BarrierRequest{
			Job: m.Name, Name: name, Generation: generation, Members: m.Members, Participants: uint32(m.Participants), Participant: m.Participant,
		}
		if end, ok := ctx.Deadline(); ok {
			left := time.Until(end)
			req.Wait = durationpb.New(min(max(left-margin(left), time.Millisecond), 24*time.Hour))
		}
		_, err := m.client.api.Barrier(ctx, req, grpc.WaitForReady(true))
		return explain(err)
	})
}

// Raise raises a eureka of the job, of priority 0.
func (m *Member) Raise(ctx context.Context, topic string, body []byte) error {
	return m.client.RaiseEureka(ctx, m.Name, Eureka{Topic: topic, Body: body})
}

// Watch is WatchEureka of the job.
func (m *Member) Watch(ctx context.Context, handle func(Heard) error) error {
	return m.client.WatchEureka(ctx, m.Name, handle)
}

// margin is how much earlier than the caller's deadline the half must answer, so that it can list the missing members.
func margin(left time.Duration) time.Duration { return min(left/4, 500*time.Millisecond) }
