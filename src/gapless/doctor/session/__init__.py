"""One run of a program under the doctor, from its start to the session that a report shows."""
