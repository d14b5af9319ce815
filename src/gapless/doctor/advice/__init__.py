"""What a finding says: its cause and code, why the host waits there, what to write instead."""
