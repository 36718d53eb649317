package gitserver

// Traffic counts what clients asked of one repository, after authentication. It
// tells a poll that found nothing new from a download.
type Traffic struct {
	// Discoveries are the requests that open a reading by HTTP.
	Discoveries int
	// Lists are HTTP requests for the references alone: with protocol 2 a
	// ls-remote is one discovery and one list.
	Lists int
	// Fetches are downloads by HTTP.
	Fetches int
	// Sessions are readings by SSH, which may be either.
	Sessions int
	// Pushes are pushes by HTTP and SSH.
	Pushes int
}

// Requests returns the traffic of a repository so far.
func (s *Server) Requests(repository string) Traffic {
	name, _, err := s.place(repository)
	if err != nil {
		return Traffic{}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.traffic[name]
}

func (s *Server) count(name string, add func(*Traffic)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.traffic[name]
	add(&t)
	s.traffic[name] = t
}
