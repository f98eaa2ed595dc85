package supervisor

// What tests of replicas over real sockets look at.
var NodeExecutors = (*Supervisor).nodeExecutors

// Term is the token of this replica's lead; 0: another one leads.
func (s *Supervisor) Term() uint64 { return s.engine.Term() }
