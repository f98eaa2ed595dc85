package config

import "fmt"

// SharedAddresses names each address that two supervisors share, and each address that http shares with a link or the window, whose
// handshakes use TCP. Most are mistakes, and `config check` refuses them. They do not prevent a start, because one address may
// stand for several supervisors, and earlier versions accepted a link's address for http.
func (a Agent) SharedAddresses() error {
	p, reports := &problems{}, taken{}
	for i, s := range a.Supervisors {
		reports.add(p, fmt.Sprintf("supervisors[%d].report", i), s.Report)
	}
	http := func(field, address string) {
		tcp := taken{}
		tcp.add(p, "http", a.HTTP)
		tcp.add(p, field, address)
	}
	http("window.listen", a.Window.Listen)
	for _, name := range sortedKeys(a.Links) {
		http("links."+name+".local", a.Links[name].Local)
	}
	return p.err()
}

// SharedAddresses names each address of the nodes, spares and replicas that another of them has too. Most are mistakes,
// and `config check` refuses them. They are no error at a start: earlier versions accepted them.
func (s Supervisor) SharedAddresses() error {
	p, services, udp, tcp := &problems{}, taken{}, taken{}, taken{}
	for i, n := range s.Nodes {
		services.add(p, fmt.Sprintf("nodes[%d].service", i), n.Service)
	}
	for i, n := range s.Spares {
		services.add(p, fmt.Sprintf("spares[%d].service", i), n.Service)
	}
	for i, r := range s.Replicas {
		field := fmt.Sprintf("replicas[%d]", i)
		tcp.add(p, field+".grpc", r.GRPC)
		tcp.add(p, field+".http", r.HTTP)
		if !s.Parent() {
			udp.add(p, field+".report", r.Report)
		}
	}
	return p.err()
}

// IgnoredLabels names the label of alerts that is configured and ignored. `config check` refuses it. It is no error at a start: earlier
// versions accepted it.
func (s Supervisor) IgnoredLabels() error {
	p := &problems{}
	if a := s.Responses.Executors.Alertmanager; a != nil && a.Labels[NoticeLabel] != "" {
		p.bad("responses.executors.alertmanager.labels."+NoticeLabel, NoticeLabel, "%s", wantLabel())
	}
	return p.err()
}
