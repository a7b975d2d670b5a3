"""The pytest plugin behind ``@pytest.mark.ranks``: tests that run on several ranks."""
