package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/lofamo/lofamo/internal/cluster"
)

const consulName = "consul"

// consulServers is the number of servers beside the members.
const consulServers = 3

// consul runs an agent in client mode for each member, beside three servers. Each member watches the health of all
// nodes by blocking queries to its own agent.
type consul struct {
	cell    *cell
	program string
	pids    []int
}

func (c *consul) overlap() bool { return false }
func (c *consul) note() string  { return "" }

func serverAddress(i int) string { return fmt.Sprintf("127.0.2.%d", i+1) }

func (c *consul) agent(name, addr string, args ...string) (*exec.Cmd, error) {
	args = append([]string{"agent", "-node=" + name, "-bind=" + addr, "-client=" + addr, "-dns-port=-1", "-log-level=warn",
		"-data-dir=" + filepath.Join(c.cell.dir, name), "-hcl=disable_update_check = true", "-retry-interval=1s"}, args...)
	for i := range consulServers {
		args = append(args, "-retry-join="+serverAddress(i))
	}
	return session(c.cell.log, c.cell.log, c.program, args...)
}

func (c *consul) start(ctx context.Context) error {
	for i := range consulServers {
		cmd, err := c.agent(fmt.Sprintf("s%d", i), serverAddress(i), "-server", fmt.Sprintf("-bootstrap-expect=%d", consulServers))
		if err != nil {
			return err
		}
		reap(cmd)
	}
	c.pids = make([]int, c.cell.members)
	for i := range c.pids {
		if err := c.restart(ctx, i); err != nil {
			return err
		}
		go c.watch(ctx, i)
	}
	return nil
}

func (c *consul) session(member int) int { return c.pids[member] }

func (c *consul) restart(_ context.Context, member int) error {
	cmd, err := c.agent(nameOf(member), addressOf(member))
	if err != nil {
		return err
	}
	c.pids[member] = cmd.Process.Pid
	reap(cmd)
	return nil
}

// healthCheck is a part of an entry of /v1/health/state/any.
type healthCheck struct {
	Node    string
	CheckID string
	Status  string
}

// watch asks a member's agent for changes of all nodes' health, until ctx ends. While the agent is dead or has no
// leader it tries again.
func (c *consul) watch(ctx context.Context, observer int) {
	index := ""
	client := &http.Client{Timeout: 6 * time.Minute}
	for ctx.Err() == nil {
		url := fmt.Sprintf("http://%s:8500/v1/health/state/any?wait=5m&index=%s", addressOf(observer), index)
		checks, next, err := askHealth(ctx, client, url)
		at := cluster.Monotonic()
		if err != nil {
			index = ""
			_ = pause(ctx, 100*time.Millisecond)
			continue
		}
		index = next
		for _, k := range checks {
			if m, err := memberOf(k.Node); err == nil && k.CheckID == "serfHealth" {
				c.cell.board.saw(observer, m, k.Status != "critical", at)
			}
		}
	}
}

func askHealth(ctx context.Context, client *http.Client, url string) (checks []healthCheck, index string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, "", err
	}
	res, err := client.Do(req)
	if err != nil {
		return nil, "", err
	}
	defer func() { _ = res.Body.Close() }()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		return nil, "", err
	}
	if res.StatusCode != http.StatusOK {
		return nil, "", fmt.Errorf("%s: %s: %s", url, res.Status, b)
	}
	if err := json.Unmarshal(b, &checks); err != nil {
		return nil, "", fmt.Errorf("%s: %w", url, err)
	}
	return checks, res.Header.Get("X-Consul-Index"), nil
}

// consulVersion asks the program.
func consulVersion(program string) (string, error) {
	b, err := exec.Command(program, "version").Output()
	if err != nil {
		return "", fmt.Errorf("%s version: %w", program, err)
	}
	line, _, _ := strings.Cut(string(b), "\n")
	return strings.TrimPrefix(line, "Consul "), nil
}
