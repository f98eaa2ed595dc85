package embedded

// EndByItself ends the member's server as a removal from the cluster does.
func (m *Member) EndByItself() { m.etcd.Server.HardStop() }
