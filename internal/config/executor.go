package config

import "time"

// ExecutorClient configures the supervisors' connection to the executor process: Slurm, power and commands.
type ExecutorClient struct {
	// Address of the process, "ip:port". Required.
	Address string `json:"address"`
	// DialTimeout is the maximum time to establish a connection, 100ms to 1m. 0 stands for 5s, the default.
	DialTimeout Duration `json:"dialTimeout,omitzero"`
	// SettleTimeout is the time to keep querying the process for the outcome of an attempt, after that attempt timed
	// out and its answer was lost. Then the outcome counts as unknown. 100ms to 5m. 0 stands for 10s, the default.
	SettleTimeout Duration `json:"settleTimeout,omitzero"`
}

// Filled returns the configuration with its defaults filled in.
func (c ExecutorClient) Filled() ExecutorClient {
	if c.DialTimeout == 0 {
		c.DialTimeout = Duration(5 * time.Second)
	}
	if c.SettleTimeout == 0 {
		c.SettleTimeout = Duration(10 * time.Second)
	}
	return c
}

// Validate names every bad field.
func (c ExecutorClient) Validate() error {
	var p problems
	p.remote("address", c.Address)
	f := c.Filled()
	if d := time.Duration(f.DialTimeout); d < 100*time.Millisecond || d > time.Minute {
		p.bad("dialTimeout", c.DialTimeout, "100ms to 1m, or 0 for 5s")
	}
	if d := time.Duration(f.SettleTimeout); d < 100*time.Millisecond || d > 5*time.Minute {
		p.bad("settleTimeout", c.SettleTimeout, "100ms to 5m, or 0 for 10s")
	}
	return p.err()
}

// Process has the common configuration of processes that are neither agent nor supervisor.
type Process struct {
	// Cluster is the cluster's name, as in the certificates. Required.
	Cluster string `json:"cluster"`
	// Listen is the address of its service, "ip:port". Required.
	Listen string `json:"listen"`
	// HTTP is the address of metrics and health, "ip:port". Default none.
	HTTP string `json:"http,omitempty"`
	// TLS are the files with its certificate and key. Required.
	TLS SupervisorTLS `json:"tls"`
	// Log configures the log.
	Log LogConfig `json:"log"`
}

// Validate names every bad field.
func (c Process) Validate() error {
	var p problems
	p.cluster(c.Cluster)
	p.listen("listen", c.Listen)
	if c.HTTP != "" {
		p.listen("http", c.HTTP)
		tcp := taken{}
		tcp.add(&p, "listen", c.Listen)
		tcp.add(&p, "http", c.HTTP)
	}
	p.path("tls.ca", c.TLS.CA)
	p.path("tls.cert", c.TLS.Cert)
	p.path("tls.key", c.TLS.Key)
	p.log(c.Log)
	return p.err()
}
