package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/lofamo/lofamo/internal/program"
	"github.com/lofamo/lofamo/pkg/jobs"
)

// jobFlags holds the flags that all commands for jobs share.
type jobFlags struct {
	job, socket string
	timeout     time.Duration
}

func (j *jobFlags) add(c *cobra.Command, timeout time.Duration, means string) {
	c.Flags().StringVar(&j.job, "job", "", "name of the job: 1 to 63 of a-z, 0-9 and '-' (required)")
	c.Flags().StringVar(&j.socket, "socket", "", "the node's socket for jobs (default: that of --config, or $"+jobs.EnvSocket+", or "+
		jobs.DefaultSocket+")")
	program.DurationVar(c.Flags(), &j.timeout, "timeout", timeout, means)
}

// dial returns a client, and a context that ends with the timeout.
func (o *options) dial(c *cobra.Command, j jobFlags) (*jobs.Client, context.Context, context.CancelFunc, error) {
	if j.job == "" {
		return nil, nil, nil, fmt.Errorf("%w: --job: given nothing: want the name of a job", errUsage)
	}
	if j.timeout < 0 {
		return nil, nil, nil, fmt.Errorf("%w: --timeout: given %s: want 0s (none) or more", errUsage, j.timeout)
	}
	if j.socket == "" && o.config != "" {
		cfg, err := o.load()
		if err != nil {
			return nil, nil, nil, err
		}
		j.socket = cfg.JobsSocket()
	}
	client, err := jobs.Dial(j.socket)
	switch {
	case errors.Is(err, fs.ErrPermission):
		return nil, nil, nil, err
	case err != nil:
		return nil, nil, nil, fmt.Errorf("%w: --socket: %w", errUsage, err)
	}
	ctx, cancel := context.WithCancel(c.Context())
	if j.timeout > 0 {
		ctx, cancel = context.WithTimeout(c.Context(), j.timeout)
	}
	return client, ctx, func() { cancel(); _ = client.Close() }, nil
}

// asUsage marks errors that the half returns because of its arguments.
func asUsage(err error) error {
	if status.Code(err) == codes.InvalidArgument {
		return fmt.Errorf("%w: %w", errUsage, err)
	}
	return err
}

func (o *options) eurekaCommand() *cobra.Command {
	var j jobFlags
	var e jobs.Eureka
	var body string
	var watch bool
	var count int
	c := &cobra.Command{
		Use:   "eureka --job NAME [--topic TOPIC [--body TEXT] | --watch]",
		Short: "Notify all nodes at once, over the torus links alone; or print such notices",
		Long: `Notifies all processes of a job on all nodes at once (seed 003 §4.4.3). The notice travels over the torus links, and needs neither
supervisors nor the service network. The command ends when the node has begun to send it, and with 1 if no link of this node is alive.

With --watch it prints the eurekas of the job as lines of JSON, after a first line {"watching":true}, until it is interrupted or has
printed --count eurekas.`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if count < 0 {
				return fmt.Errorf("%w: --count: given %d: want 0 (all) or more", errUsage, count)
			}
			client, ctx, end, err := o.dial(c, j)
			if err != nil {
				return err
			}
			defer end()
			if watch {
				return watchEurekas(ctx, c, client, j.job, count)
			}
			e.Body = []byte(body)
			return asUsage(client.RaiseEureka(ctx, j.job, e))
		},
	}
	j.add(c, 0, "for how long to wait for the host half, or to watch (default: for ever)")
	c.Flags().StringVar(&e.Topic, "topic", "eureka", "the subject: 1 to 32 of a-z, 0-9 and '-'")
	c.Flags().StringVar(&body, "body", "", "the text, at most 512 bytes")
	c.Flags().IntVar(&e.Priority, "priority", 0, "0 lowest to 3")
	c.Flags().BoolVar(&watch, "watch", false, "print the eurekas of the job")
	c.Flags().IntVar(&count, "count", 0, "with --watch: end after so many (default: never)")
	return c
}

// heardLine is a line of --watch.
type heardLine struct {
	Watching bool   `json:"watching,omitempty"` // the watch has begun
	Again    bool   `json:"again,omitempty"`    // after a gap: eurekas raised meanwhile are lost
	Missed   uint64 `json:"missed,omitempty"`
	Topic    string `json:"topic,omitempty"`
	Body     string `json:"body,omitempty"`
	Node     string `json:"node,omitempty"`
	UID      uint32 `json:"uid"`
	Priority int    `json:"priority,omitempty"`

	Supervisor string `json:"supervisor,omitempty"` // of an announcement by the cluster itself
	Target     string `json:"target,omitempty"`
	Response   string `json:"response,omitempty"`
}

func watchEurekas(ctx context.Context, c *cobra.Command, client *jobs.Client, job string, count int) error {
	seen := 0
	err := client.WatchEureka(ctx, job, func(h jobs.Heard) error {
		line := heardLine{Watching: h.Eureka == nil, Again: h.Again, Missed: h.Missed}
		if h.Eureka != nil {
			seen++
			line.Supervisor, line.Target, line.Response = h.Eureka.Supervisor, h.Eureka.Target, h.Eureka.Response
			line.Topic, line.Body, line.Node, line.UID, line.Priority = h.Eureka.Topic, string(h.Eureka.Body), h.Eureka.Node, h.Eureka.UID,
				h.Eureka.Priority
		}
		if err := json.NewEncoder(c.OutOrStdout()).Encode(line); err != nil {
			return err
		}
		if count > 0 && seen >= count {
			return errEnough
		}
		return nil
	})
	interrupted := c.Context().Err() != nil
	if errors.Is(err, errEnough) || interrupted {
		err = nil
	}
	return asUsage(err)
}

func (o *options) barrierCommand() *cobra.Command {
	var j jobFlags
	var name, participant string
	var members []string
	var generation uint64
	var participants int
	c := &cobra.Command{
		Use:   "barrier --job NAME --members NODE,NODE,...",
		Short: "Wait until all nodes of a job have reached the same point",
		Long: `Wait until all participants on all members of a job have reached the barrier of that name and generation (seed 003
§4.4.3). The messages travel over the torus links, and need neither supervisors nor the service network. If members
are missing at the timeout, or a missing one is FAILED in the fault map, the command names them and ends with 1.`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if len(members) == 0 {
				return fmt.Errorf("%w: --members: given nothing: want the ids of all nodes of the job, with commas", errUsage)
			}
			if participants < 1 || participants > 256 {
				return fmt.Errorf("%w: --participants: given %d: want 1 to 256", errUsage, participants)
			}
			client, ctx, end, err := o.dial(c, j)
			if err != nil {
				return err
			}
			defer end()
			m := client.Job(jobs.Job{Name: j.job, Members: members, Participants: participants, Participant: participant})
			if err := m.BarrierAt(ctx, name, generation); err != nil {
				return asUsage(err)
			}
			_, err = io.WriteString(c.OutOrStdout(), "complete: "+strings.Join(members, ", ")+"\n")
			return err
		},
	}
	j.add(c, 0, "for how long to wait (default: for ever)")
	c.Flags().StringVar(&name, "name", "barrier", "of the barrier: 1 to 32 of a-z, 0-9 and '-'")
	c.Flags().StringSliceVar(&members, "members", nil, "ids of all nodes that take part, with commas, this one among them (required)")
	c.Flags().Uint64Var(&generation, "generation", 1, "number of this barrier in the job's run, from 1")
	c.Flags().IntVar(&participants, "participants", 1, "processes on this node that take part, 1 to 256")
	c.Flags().StringVar(&participant, "participant", "", "which of them this is (default: its process id, with its PID namespace)")
	return c
}
