package embedded

// EndByItself has the member's server end as it does when it is removed from the cluster.
func (m *Member) EndByItself() { m.etcd.Server.HardStop() }
